/* All passes for one set of instructions: of float and of double. */

#define REAL float
#define WHOLE int32_t
#define SIZE 4
#include "_passes_respond.h"
#include "_passes_dense.h"
#include "_passes_sparse.h"
#include "_passes_moments.h"
#undef REAL
#undef VEC
#undef WHOLE
#undef SIZE
#undef EACH
#undef INDEX
#undef LIST
#undef LANES

#define REAL double
#define WHOLE int64_t
#define SIZE 8
#include "_passes_respond.h"
#include "_passes_dense.h"
#include "_passes_sparse.h"
#include "_passes_moments.h"
#include "_passes_sweeps.h"
#undef REAL
#undef VEC
#undef WHOLE
#undef SIZE
#undef EACH
#undef INDEX
#undef LIST
#undef LANES

#undef BYTES
#undef ISA
#undef TARGET
#undef ROWS
#undef ABREAST
