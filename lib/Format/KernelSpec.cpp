#include "kvcache/Kernel/KernelSpec.h"
