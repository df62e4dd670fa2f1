#include "kvcache/Format/Format.h"
