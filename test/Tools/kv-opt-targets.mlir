// RUN: kv-opt --list-targets | FileCheck %s --check-prefix=LIST
// RUN: not kv-opt %s --verify-target-legal=target=sm_75 2>&1 | FileCheck %s --check-prefix=SM75
// RUN: not kv-opt %s --verify-target-legal=target=sm_120 2>&1 | FileCheck %s --check-prefix=SM120
// RUN: not kv-opt %s --verify-target-legal=target=sm80 2>&1 | FileCheck %s --check-prefix=SPELLING
// RUN: not kv-opt %s --verify-target-legal='target=""' 2>&1 | FileCheck %s --check-prefix=EMPTY
// RUN: not kv-opt %s --kvcache-assign-layout=target=sm_75 2>&1 | FileCheck %s --check-prefix=SM75

// A wrong target is refused with its name and the list of those that are right.
// LIST: x86-64
// LIST: sm_80
// LIST: sm_90a
// SM75: error: {{.*}}sm_75{{.*}}x86-64{{.*}}sm_80{{.*}}sm_90a
// SM120: error: {{.*}}sm_120{{.*}}x86-64{{.*}}sm_80{{.*}}sm_90a
// SPELLING: error: {{.*}}sm80{{.*}}x86-64{{.*}}sm_80{{.*}}sm_90a
// EMPTY: error: {{.*}}''{{.*}}x86-64{{.*}}sm_80{{.*}}sm_90a
func.func private @nothing()
