/* One pass over rows: all products with a group of rows are taken while it is in the cache of its
 * core, so that the rows are read from memory once. A group of dense rows is standardised there.
 *
 * Plain C with the vector types of GCC and Clang, called through ctypes. The passes are included once
 * per kind of number and set of instructions, and the widest set that there is does the work.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define GROUP 8 /* rows that are multiplied together */
#define AHEAD 32 /* entries of sparse rows whose weights or sums are fetched beforehand */

/* What to do. Arrays that are not used are NULL; all but the rows are contiguous, in the number type
 * of the products. Must agree with `Pass` in `library.py`. */
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

/* Sparse rows in place of x, and their products as sums over entries: Z = X D - 1 nu'. */
typedef struct {
    const void *pointers, *indices; /* (n + 1,), (entries,), of `index_bytes` */
    int64_t index_bytes;
    const void *data; /* (entries,) */
    int64_t width, square_width; /* of the next three: one, or whole vectors of 16 bytes */
    const void *weights; /* (d, width): D Q, and beside it what S needs of the entries */
    const void *square_weights; /* (d, square_width): what S needs of the squares of the entries */
    const void *constant; /* (width,): what is subtracted from the products */
    int64_t back_width, back_square_width;
    void *back, *back_squares; /* (d, back_width), (d, back_square_width): sums, zero at first */
    double *totals; /* (columns,): sums of R, zero at first */
    const void *scale, *shift; /* (d,): D and nu */
    int64_t levelled; /* whether the square of every entry is `level` times the entry */
    double level;
} sparse;

/* Moments of columns, in double. Must agree with `MomentsStructure` in `library.py`. */
typedef struct {
    int64_t n, d;
    const char *x; /* (n, d), or NULL where rows are sparse */
    int64_t x_row, x_column; /* strides in bytes */
    const double *weight; /* (n,); rows of weight zero are passed over */
    double total; /* the weight of all rows */
    double *mean, *var, *kappa, *phi, *low, *high; /* (d,) */
    void *memory; /* `moments_memory_needed` bytes */
} moments;

#define MOST_SWEPT 40 /* unknowns of a column that a sweep solves for */
#define NEXT_ROW 8 /* entries of a column whose rows are fetched beforehand */

/* Columns of sparse rows and what a sweep over them moves. Must agree with `SweepStructure` in `sweeps.py`. */
typedef struct {
    int64_t K, first, last; /* unknowns of a column, and the columns of a group */
    const int64_t *starts;  /* (d + 1,), of the entries of each column */
    const int32_t *rows;    /* of each entry */
    const double *x;        /* of each entry; 0 where all are one */
    const double *weight;   /* (n,), or 0 */
    double *total, *residual; /* (n, K - 1), (n,) */
    float *spread;            /* (n, K (K - 1) / 2): sums of x^2 times the covariances of v, lower triangles */
    double *turn;             /* (n, K - 1): sums of x^3 C s v - x^2 c, with c those of v and w */
    double *table, *cov;      /* (d, K), (d, K, K); cov is 0 unless the sweep is variational */
    const double *mean, *precision; /* (K,), of the group */
    const double *prior, *pull;     /* (d, K, K), (d, K): what earlier rows say, or 0 */
    const double *z;                /* (d, K), normal numbers for draws, or 0 */
    const double *signs;            /* (K,) */
    double *variance;               /* (n,), of the predictions of the rows */
    double noise;
} column_sweep;

#define STRIP 128 /* rows whose moments are taken about their own means */
#define TILE 512 /* columns: these rows of so many stay in the cache */

typedef struct {
    double mean[TILE], low[TILE], high[TILE], range[TILE], inverse[TILE];
} strip;

typedef struct {
    double first[TILE], second[TILE], third[TILE], fourth[TILE];
} powers;

/* A column of sparse rows: at first its entries are counted, then their powers are summed. */
typedef struct {
    double mean;
    union {
        double count, inverse;
    };
    union {
        double share, first;
    };
    double second, third, fourth, low, high;
} line;

/* Return 1/range, by which powers neither overflow nor underflow; 0 where nothing varies. */
static inline double inverse_range(double *mean, double *range, double low, double high)
{
    const double above = high - *mean, below = *mean - low;
    *range = above > below ? above : below;
    if (low == high) *mean = low, *range = 0; /* without the rounding of a mean */
    return *range <= 1e-300 ? 0 : 1 / *range;
}

/* Turn a column from counting to summing, and return the share of the zeros that are not stored. */
static inline double turn_line(moments *t, line *c, int64_t j, int64_t counting)
{
    const int full = c->count == (double)counting;
    const double zeros = full || c->share > 1 ? 0 : 1 - c->share;
    if (!full) c->low = c->low < 0 ? c->low : 0, c->high = c->high > 0 ? c->high : 0;
    t->low[j] = c->low, t->high[j] = c->high;
    c->inverse = inverse_range(&c->mean, &t->var[j], c->low, c->high);
    c->first = 0;
    return zeros;
}

static inline void add_power(line *c, double v, double w)
{
    const double z = (v - c->mean) * c->inverse, square = z * z, weighted = w * square;
    c->first += w * z;
    c->second += weighted;
    c->third += weighted * z;
    c->fourth += weighted * square;
}

/* The columns of sparse rows in whole groups, in which they are turned. */
static inline int64_t whole(int64_t columns) { return (columns + GROUP - 1) / GROUP * GROUP; }

/* Rows are padded with zeros to whole vectors of any kind. */
static inline int64_t padded_width(int64_t d) { return (d + 31) / 32 * 32; }

/* The place of the next line of the rows to come that is fetched beforehand. */
typedef struct {
    const char *at;
} ahead;

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

/* Vectors of lanes of two others, by number, and f(lane, x) for each lane. */
#if defined(__clang__)
#define SHUFFLED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLED(a, b, ...) __builtin_shuffle(a, b, (INDEX){__VA_ARGS__})
#endif
#if defined(__clang__)
#define ZIPPED(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define ZIPPED(a, b, ...) __builtin_shuffle(a, b, (NAME(lanes)){__VA_ARGS__})
#endif
#define EACH_OF_2(f, x) f(0, x), f(1, x)
#define EACH_OF_4(f, x) EACH_OF_2(f, x), f(2, x), f(3, x)
#define EACH_OF_8(f, x) EACH_OF_4(f, x), f(4, x), f(5, x), f(6, x), f(7, x)
#define EACH_OF_16(f, x)                                                                          \
    EACH_OF_8(f, x), f(8, x), f(9, x), f(10, x), f(11, x), f(12, x), f(13, x), f(14, x), f(15, x)

#define PASTE(a, b, c) a##_##b##_##c
#define NAMED(a, b, c) PASTE(a, b, c)
#define NAME(a) NAMED(a, REAL, ISA)
#define INLINE static inline __attribute__((always_inline)) TARGET

#define BYTES 16
#define ISA plain
#define TARGET
#define ROWS 4 /* of a tile of products */
#define ABREAST 1 /* vectors of a tile of sums */
#include "_passes_kinds.h"

#if defined(__x86_64__)
#define BYTES 32
#define ISA avx2
#define TARGET __attribute__((target("avx2,fma")))
#define ROWS 4
#define ABREAST 1
#include "_passes_kinds.h"

#define BYTES 64
#define ISA avx512
#if defined(__clang__) /* which has no such preference */
#define TARGET __attribute__((target("avx512f,avx2,fma")))
#else
#define TARGET __attribute__((target("avx512f,avx2,fma,prefer-vector-width=512")))
#endif
#define ROWS 8
#define ABREAST 2
#include "_passes_kinds.h"
#endif


/* Which source this was made of. */
const char *source_digest(void) { return SOURCE_DIGEST; }

/* The sizes of the structures, for those who write them down again. */
int pass_size(void) { return sizeof(pass); }
int sparse_size(void) { return sizeof(sparse); }
int moments_size(void) { return sizeof(moments); }
int column_sweep_size(void) { return sizeof(column_sweep); }

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

int64_t sparse_memory_needed(const pass *p, const sparse *x, int bytes)
{
    const int64_t products = (p->n + GROUP - 1) * (p->q + p->s);
    const int64_t wide = whole(x->width) + whole(x->square_width) + 2 * whole(x->back_width);
    return (products + wide * GROUP) * bytes + p->columns * GROUP * 8 + 7 * 64;
}

int64_t moments_memory_needed(const moments *t)
{
    const int64_t rows = t->n < STRIP ? t->n : STRIP;
    return t->x ? rows * TILE * 8 : t->d * (int64_t)(sizeof(line) + sizeof(double));
}

/* Do it. `level` is at most `instruction_level()`. */
#if defined(__x86_64__)
#define WIDEST(run, real, ...)                                                                    \
    if (level == 2) run##_##real##_avx512(__VA_ARGS__);                                           \
    else if (level == 1) run##_##real##_avx2(__VA_ARGS__);                                        \
    else run##_##real##_plain(__VA_ARGS__);
#else
#define WIDEST(run, real, ...)                                                                    \
    (void)level;                                                                                  \
    run##_##real##_plain(__VA_ARGS__);
#endif

void run_pass(const pass *p, int bytes, int level)
{
    if (bytes == 4) {
        WIDEST(run, float, p)
    } else {
        WIDEST(run, double, p)
    }
}

void run_sparse_pass(const pass *p, const sparse *x, int bytes, int level)
{
    if (bytes == 4) {
        WIDEST(run_sparse, float, p, x)
    } else {
        WIDEST(run_sparse, double, p, x)
    }
}

void run_moments(moments *t, int bytes, int level)
{
    if (bytes == 4) {
        WIDEST(moments, float, t)
    } else {
        WIDEST(moments, double, t)
    }
}

void run_sparse_moments(moments *t, const sparse *x, int bytes, int level)
{
    if (bytes == 4) {
        WIDEST(sparse_moments, float, t, x)
    } else {
        WIDEST(sparse_moments, double, t, x)
    }
}


void run_column_sweep(const column_sweep *t, int level) { WIDEST(sweep_columns, double, t) }

void run_column_variance(const column_sweep *t, int level) { WIDEST(spread_columns, double, t) }
