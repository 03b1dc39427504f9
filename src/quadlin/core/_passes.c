/* One pass over dense rows: each group of rows is standardised into the cache of its core, and all
 * products with it are taken there, so that the rows are read from memory once.
 *
 * Plain C with the vector types of GCC and Clang, called through ctypes. The file includes itself
 * once per kind of number and per set of instructions; `run_pass` calls the widest one there is.
 */
#ifndef REAL

#include <stdint.h>
#include <string.h>

#define GROUP 8 /* rows that are multiplied together */

/* What to do. Arrays that are not used are NULL; all but the rows are contiguous, in the number type
 * of the products. Must agree with `Pass` in `compiled.py`. */
typedef struct {
    int64_t n, d;
    const char *x; /* (n, d) */
    int64_t x_row, x_column, x_bytes; /* strides in bytes, size of a number */
    const void *mean, *scale, *rest; /* (d,): z = (x - mean) scale - rest */
    /* Forward: Z Q and (Z.Z) S. */
    int64_t q, s;
    const void *Q, *S; /* (q, d), (s, d) */
    void *products, *squares; /* (q, n), (s, n): where they go, if anybody asks */
    /* In between: r_i = w (c_i + Zw_i + sum_a t_a ZE_a ZH_ia - (Z.Z) S_i - y), i < m; its columns
     * in Q are E (k), w (m) and, from `right` on, H (m k). Then r_i ZQ_b for `actions` columns. */
    int64_t respond, m, k, right, action, actions;
    const void *constant, *factor; /* (m,), (k,) */
    const void *y, *weight; /* (n,) */
    double *total, *loss; /* (m,), (1,): sums of r_i and of r_i^2 / w */
    /* Backward: (Z' R)' for R as above, or as given, and (Z.Z)' R for its first columns. */
    int64_t columns, square_columns;
    const void *R; /* (columns, n) */
    void *back, *back_squares; /* (columns, d), (square_columns, d) */
    void *memory; /* `memory_needed` bytes */
} pass;

/* Rows are padded with zeros to whole vectors of any kind. */
static inline int64_t padded_width(int64_t d) { return (d + 31) / 32 * 32; }

typedef struct { const char *at, *end; } ahead;
static inline __attribute__((always_inline)) void fetch(ahead *next)
{
    __builtin_prefetch(next->at, 0, 3);
    next->at += 64;
}

/* Keeps a vector that is used several times in a register: GCC would load it for each use. */
#if defined(__x86_64__)
#define HELD(v) __asm__("" : "+v"(v))
#elif defined(__aarch64__)
#define HELD(v) __asm__("" : "+w"(v))
#else
#define HELD(v)
#endif

#define PASTE(a, b, c) a##_##b##_##c
#define NAMED(a, b, c) PASTE(a, b, c)
#define NAME(a) NAMED(a, REAL, ISA)
#define INLINE static inline __attribute__((always_inline)) TARGET

#define BYTES 16
#define ISA plain
#define TARGET
#define ROWS 4 /* of a tile of products */
#define ABREAST 1 /* vectors of a tile of sums */
#define REAL float
#include "_passes.c"
#undef REAL
#define REAL double
#include "_passes.c"
#undef REAL
#undef BYTES
#undef ISA
#undef TARGET
#undef ROWS
#undef ABREAST

#if defined(__x86_64__)
#define BYTES 32
#define ISA avx2
#define TARGET __attribute__((target("avx2,fma")))
#define ROWS 4
#define ABREAST 1
#define REAL float
#include "_passes.c"
#undef REAL
#define REAL double
#include "_passes.c"
#undef REAL
#undef BYTES
#undef ISA
#undef TARGET
#undef ROWS
#undef ABREAST

#define BYTES 64
#define ISA avx512
#define TARGET __attribute__((target("avx512f,avx2,fma,prefer-vector-width=512")))
#define ROWS 8
#define ABREAST 2
#define REAL float
#include "_passes.c"
#undef REAL
#define REAL double
#include "_passes.c"
#undef REAL
#endif

/* Which source this was made of. */
const char *source_digest(void) { return SOURCE_DIGEST; }

/* How wide the instructions of this machine are: 0, 1 or 2. */
int instruction_level(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1;
#endif
    return 0;
}

/* How much memory a pass needs beside its arrays. */
int64_t memory_needed(const pass *p, int bytes)
{
    const int64_t columns = p->q + p->s + p->columns;
    const int64_t wide = GROUP + columns + p->square_columns;
    return (wide * padded_width(p->d) + columns * GROUP) * bytes + 64;
}

/* Do it. `level` is at most `instruction_level()`. */
void run_pass(const pass *p, int bytes, int level)
{
#if defined(__x86_64__)
    if (level == 2) {
        if (bytes == 4) run_float_avx512(p);
        else run_double_avx512(p);
        return;
    }
    if (level == 1) {
        if (bytes == 4) run_float_avx2(p);
        else run_double_avx2(p);
        return;
    }
#endif
    if (bytes == 4) run_float_plain(p);
    else run_double_plain(p);
}

#else /* REAL: the pass itself */

#define VEC NAME(vec)
#define LANES ((int64_t)(BYTES / sizeof(REAL)))
#define QUARTER NAME(quarter)
typedef REAL VEC __attribute__((vector_size(BYTES)));
typedef REAL QUARTER __attribute__((vector_size(16)));

/* Rows in Fortran order are taken column by column: a line of the cache has all rows of a group. */
#define STANDARDISED(KIND)                                                                        \
    if (p->x_column == sizeof(KIND)) {                                                            \
        for (int g = 0; g < rows; g++, x += p->x_row, z += width)                                 \
            for (int64_t j = 0; j < d; j++)                                                       \
                z[j] = ((REAL)((const KIND *)x)[j] - mean[j]) * scale[j] - rest[j];               \
    } else {                                                                                      \
        for (int64_t j = 0; j < d; j++, x += p->x_column)                                         \
            for (int g = 0; g < rows; g++)                                                        \
                z[g * width + j] =                                                                \
                    ((REAL) * (const KIND *)(x + g * p->x_row) - mean[j]) * scale[j] - rest[j];   \
    }

/* Standardise a group of rows; what lies beyond their last column stays as it is, zero. */
static TARGET void NAME(standardise)(const pass *p, int64_t start, int rows, int64_t width, REAL *restrict z)
{
    const int64_t d = p->d;
    const char *x = p->x + start * p->x_row;
    const REAL *restrict mean = p->mean, *restrict scale = p->scale, *restrict rest = p->rest;
    if (p->x_bytes == 4) {
        STANDARDISED(float)
    } else {
        STANDARDISED(double)
    }
}
#undef STANDARDISED

/* The sum of the lanes, halved as long as the halves are vectors. */
INLINE REAL NAME(across)(VEC v)
{
    QUARTER part[BYTES / 16];
    memcpy(part, &v, sizeof v);
#pragma GCC unroll 2
    for (int half = BYTES / 32; half; half /= 2)
#pragma GCC unroll 2
        for (int l = 0; l < half; l++) part[l] += part[l + half];
    REAL sum = part[0][0] + part[0][1];
    if (sizeof(REAL) == 4) sum += part[0][2 % (16 / sizeof(REAL))] + part[0][3 % (16 / sizeof(REAL))];
    return sum;
}

/* out[c][g] = sum_j z[g][j] Q[c][j] for ROWS rows and a few columns, held in registers. */
INLINE void NAME(tile)(const REAL *z, const REAL *Q, int64_t width, int columns, int squared, REAL *out, ahead *next)
{
    VEC sum[ROWS][3];
#pragma GCC unroll 8
    for (int g = 0; g < ROWS; g++)
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) sum[g][c] = (VEC){0};
    for (int64_t j = 0; j < width; j += LANES) {
        VEC q[3];
        fetch(next);
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) q[c] = *(const VEC *)(Q + c * width + j);
#pragma GCC unroll 8
        for (int g = 0; g < ROWS; g++) {
            VEC v = *(const VEC *)(z + g * width + j);
            HELD(v);
            if (squared) v *= v;
#pragma GCC unroll 3
            for (int c = 0; c < columns; c++) sum[g][c] += v * q[c];
        }
    }
#pragma GCC unroll 3
    for (int c = 0; c < columns; c++)
#pragma GCC unroll 8
        for (int g = 0; g < ROWS; g++) out[c * GROUP + g] = NAME(across)(sum[g][c]);
}

INLINE void NAME(forward_as)(const REAL *z, const REAL *Q, int64_t width, int64_t q, int squared, REAL *out, ahead *next)
{
    for (int g = 0; g < GROUP; g += ROWS) {
        int64_t c = 0;
        for (; q - c >= 3 && q - c != 4; c += 3)
            NAME(tile)(z + g * width, Q + c * width, width, 3, squared, out + c * GROUP + g, next);
        for (; q - c >= 2; c += 2)
            NAME(tile)(z + g * width, Q + c * width, width, 2, squared, out + c * GROUP + g, next);
        if (c < q) NAME(tile)(z + g * width, Q + c * width, width, 1, squared, out + c * GROUP + g, next);
    }
}

static TARGET void NAME(forward)(const REAL *z, const REAL *Q, int64_t width, int64_t q, REAL *out, ahead *next)
{
    NAME(forward_as)(z, Q, width, q, 0, out, next);
}

static TARGET void NAME(forward_squares)(const REAL *z, const REAL *Q, int64_t width, int64_t q, REAL *out, ahead *next)
{
    NAME(forward_as)(z, Q, width, q, 1, out, next);
}

/* sums[c][j] += sum_g R[c][g] z[g][j]. */
INLINE void NAME(backward_as)(const REAL *z, const REAL *R, int64_t width, int64_t columns, int squared, REAL *sums, ahead *next)
{
    for (int64_t j = 0; j < width; j += ABREAST * LANES) {
        VEC v[GROUP][ABREAST];
#pragma GCC unroll 8
        for (int g = 0; g < GROUP; g++)
#pragma GCC unroll 2
            for (int b = 0; b < ABREAST; b++) {
                v[g][b] = *(const VEC *)(z + g * width + j + b * LANES);
                if (squared) v[g][b] *= v[g][b];
            }
        for (int64_t c = 0; c < columns; c++) {
            VEC *at = (VEC *)(sums + c * width + j);
            VEC sum[ABREAST];
            fetch(next);
#pragma GCC unroll 2
            for (int b = 0; b < ABREAST; b++) sum[b] = at[b];
#pragma GCC unroll 8
            for (int g = 0; g < GROUP; g++)
#pragma GCC unroll 2
                for (int b = 0; b < ABREAST; b++) sum[b] += R[c * GROUP + g] * v[g][b];
#pragma GCC unroll 2
            for (int b = 0; b < ABREAST; b++) at[b] = sum[b];
        }
    }
}

static TARGET void NAME(backward)(const REAL *z, const REAL *R, int64_t width, int64_t columns, REAL *sums, ahead *next)
{
    NAME(backward_as)(z, R, width, columns, 0, sums, next);
}

static TARGET void NAME(backward_squares)(const REAL *z, const REAL *R, int64_t width, int64_t columns, REAL *sums, ahead *next)
{
    NAME(backward_as)(z, R, width, columns, 1, sums, next);
}

/* The residuals of a group, and their products with some of its products. */
static TARGET void NAME(respond)(const pass *p, int64_t start, int rows, const REAL *P, const REAL *PS, REAL *R)
{
    const REAL *constant = p->constant, *factor = p->factor, *y = p->y, *weight = p->weight;
    REAL omega[GROUP] = {0}, target[GROUP] = {0};
    for (int g = 0; g < rows; g++) {
        omega[g] = weight ? weight[start + g] : 1;
        target[g] = y ? y[start + g] : 0;
    }
    for (int64_t i = 0; i < p->m; i++) {
        const REAL *H = P + (p->right + i * p->k) * GROUP, *Zw = P + (p->k + i) * GROUP;
        REAL r[GROUP];
        for (int g = 0; g < GROUP; g++) r[g] = Zw[g];
        for (int64_t a = 0; a < p->k; a++)
            for (int g = 0; g < GROUP; g++)
                r[g] += factor[a] * P[a * GROUP + g] * H[a * GROUP + g];
        for (int g = 0; g < GROUP; g++) r[g] += constant[i] - target[g];
        if (PS)
            for (int g = 0; g < GROUP; g++) r[g] -= PS[i * GROUP + g];
        REAL *out = R + i * GROUP;
        for (int g = 0; g < GROUP; g++) out[g] = omega[g] * r[g];
        for (int g = 0; g < GROUP; g++) {
            p->total[i] += (double)out[g];
            *p->loss += (double)(out[g] * r[g]);
        }
        REAL *action = R + (p->m + i * p->actions) * GROUP;
        for (int64_t b = 0; b < p->actions; b++)
            for (int g = 0; g < GROUP; g++)
                action[b * GROUP + g] = out[g] * P[(p->action + b) * GROUP + g];
    }
}

/* Copy rows of length d into rows of length width, and clear what lies beyond. */
static void NAME(padded)(REAL *to, int64_t width, const REAL *from, int64_t rows, int64_t d)
{
    for (int64_t c = 0; c < rows; c++) {
        memcpy(to + c * width, from + c * d, d * sizeof(REAL));
        memset(to + c * width + d, 0, (width - d) * sizeof(REAL));
    }
}

static void NAME(unpadded)(REAL *to, int64_t d, const REAL *from, int64_t rows, int64_t width)
{
    for (int64_t c = 0; c < rows; c++) memcpy(to + c * d, from + c * width, d * sizeof(REAL));
}

static TARGET void NAME(run)(const pass *p)
{
    const int64_t n = p->n, d = p->d, width = padded_width(d), sums = p->columns + p->square_columns;
    REAL *z = (REAL *)(((uintptr_t)p->memory + 63) / 64 * 64);
    REAL *Q = z + GROUP * width, *S = Q + p->q * width;
    REAL *back = S + p->s * width, *back_squares = back + p->columns * width;
    REAL *P = back_squares + p->square_columns * width, *PS = P + p->q * GROUP;
    REAL *R = PS + p->s * GROUP;
    memset(z, 0, GROUP * width * sizeof(REAL));
    memset(back, 0, sums * width * sizeof(REAL));
    memset(R, 0, p->columns * GROUP * sizeof(REAL));
    NAME(padded)(Q, width, p->Q, p->q, d);
    NAME(padded)(S, width, p->S, p->s, d);
    for (int64_t start = 0; start < n; start += GROUP) {
        const int rows = n - start < GROUP ? (int)(n - start) : GROUP;
        NAME(standardise)(p, start, rows, width, z);
        if (rows < GROUP) memset(z + rows * width, 0, (GROUP - rows) * width * sizeof(REAL));
        ahead next = {p->x + (start + GROUP) * p->x_row, p->x + (start + 2 * GROUP) * p->x_row};
        NAME(forward)(z, Q, width, p->q, P, &next);
        NAME(forward_squares)(z, S, width, p->s, PS, &next);
        if (p->products)
            for (int64_t c = 0; c < p->q; c++)
                memcpy((REAL *)p->products + c * n + start, P + c * GROUP, rows * sizeof(REAL));
        if (p->squares)
            for (int64_t c = 0; c < p->s; c++)
                memcpy((REAL *)p->squares + c * n + start, PS + c * GROUP, rows * sizeof(REAL));
        if (p->respond) NAME(respond)(p, start, rows, P, p->s ? PS : NULL, R);
        else if (p->R)
            for (int64_t c = 0; c < p->columns; c++)
                memcpy(R + c * GROUP, (const REAL *)p->R + c * n + start, rows * sizeof(REAL));
        NAME(backward)(z, R, width, p->columns, back, &next);
        NAME(backward_squares)(z, R, width, p->square_columns, back_squares, &next);
    }
    NAME(unpadded)(p->back, d, back, p->columns, width);
    NAME(unpadded)(p->back_squares, d, back_squares, p->square_columns, width);
}

#undef VEC
#undef QUARTER
#undef LANES
#endif
