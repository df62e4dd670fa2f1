#!/usr/bin/env bash
# install-python.sh BUILD_DIR: puts the package that this build made into the
# build's own venv. (`pip install .` makes a build of its own.)
set -euo pipefail
build=$1
site=$("$build/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["platlib"])')
cmake --install "$build" --component python --prefix "$site" >/dev/null
