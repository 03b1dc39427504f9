/* All passes for one set of instructions: of float and of double. */

#define REAL float
#include "_passes_respond.h"
#include "_passes_dense.h"
#include "_passes_sparse.h"
#include "_passes_moments.h"
#undef REAL
#undef VEC
#undef QUARTER
#undef LANES

#define REAL double
#include "_passes_respond.h"
#include "_passes_dense.h"
#include "_passes_sparse.h"
#include "_passes_moments.h"
#undef REAL
#undef VEC
#undef QUARTER
#undef LANES

#undef BYTES
#undef ISA
#undef TARGET
#undef ROWS
#undef ABREAST
