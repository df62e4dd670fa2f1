#include "AttendLowering.h"
using namespace kvcache;
void AttendLowering::emitScoreInteger() { scoreSealed(); }
void AttendLowering::emitAccumulateInteger(Value p) { accumulateSealed(p); }
