/* A pass over sparse rows; included once per kind of number and set of instructions. */

INLINE int64_t NAME(place)(const sparse *x, const void *of, int64_t i)
{
    return x->index_bytes == 4 ? ((const int32_t *)of)[i] : ((const int64_t *)of)[i];
}

/* The column of an entry: `wide` tells 64-bit indices from 32-bit ones when this is compiled. */
INLINE int64_t NAME(column)(const sparse *x, int64_t e, int wide)
{
    return wide ? ((const int64_t *)x->indices)[e] : ((const int32_t *)x->indices)[e];
}

/* Rows of W are single numbers or whole vectors of 16 bytes, and a walk takes them in the widest vectors that fit: `count`
 * whole ones and, of the rest in quarters, a half and a quarter. All three are known when this is
 * compiled, so that sums stay in registers and entries are read once. */
#define LOOSE NAME(loose)
#define HALF NAME(half)
#define QUARTER NAME(quarter)
typedef REAL LOOSE __attribute__((vector_size(BYTES), aligned(16), may_alias));
typedef REAL HALF __attribute__((vector_size(BYTES == 64 ? 32 : 16), aligned(16), may_alias));
typedef REAL QUARTER __attribute__((vector_size(16), may_alias));
#define HALF_LANES (BYTES == 64 ? LANES / 2 : LANES * 16 / BYTES)
#define MOST (BYTES == 64 ? 2 : 4) /* whole vectors of one walk */

/* What is multiplied by an entry, or its square. */
INLINE REAL NAME(entry)(const sparse *x, int64_t e, int squared)
{
    const REAL v = ((const REAL *)x->data)[e];
    return squared ? v * v : v;
}

/* row[c] = sum over entries of v W[j][c], or of v^2 W[j][c]. Sums of even and of odd entries do not wait
 * for each other, and what later entries need is fetched beforehand. */
INLINE void NAME(gather)(const sparse *x, int64_t first, int64_t last, int64_t end, const REAL *W, int64_t width, const int count, const int rest, const int squared, const int wide, REAL *row)
{
    const int half = rest >> 1, quarter = rest & 1;
    LOOSE sum[2][4] = {0};
    HALF of_half[2] = {0};
    QUARTER of_quarter[2] = {0};
    for (int64_t e = first; e < last; e += 2) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            if (h && e + 1 == last) break;
            const REAL v = NAME(entry)(x, e + h, squared);
            const REAL *w = W + NAME(column)(x, e + h, wide) * width;
            const int64_t next = e + h + AHEAD < end ? e + h + AHEAD : e;
            const REAL *later = W + NAME(column)(x, next, wide) * width;
            __builtin_prefetch(later, 0, 3);
            if (4 * count + rest > 4) __builtin_prefetch(later + width - 1, 0, 3);
#pragma GCC unroll 4
            for (int b = 0; b < count; b++) sum[h][b] += v * *(const LOOSE *)(w + b * LANES);
            w += count * LANES;
            if (half) of_half[h] += v * *(const HALF *)w;
            if (quarter) of_quarter[h] += v * *(const QUARTER *)(w + half * HALF_LANES);
        }
    }
#pragma GCC unroll 4
    for (int b = 0; b < count; b++) *(LOOSE *)(row + b * LANES) = sum[0][b] + sum[1][b];
    row += count * LANES;
    if (half) *(HALF *)row = of_half[0] + of_half[1];
    if (quarter) *(QUARTER *)(row + half * HALF_LANES) = of_quarter[0] + of_quarter[1];
}

/* The other way round: W[j][c] += v row[c]. */
INLINE void NAME(scatter)(const sparse *x, int64_t first, int64_t last, int64_t end, REAL *W, int64_t width, const int count, const int rest, const int squared, const int wide, const REAL *row)
{
    const int half = rest >> 1, quarter = rest & 1;
    LOOSE r[4];
    HALF of_half = {0};
    QUARTER of_quarter = {0};
#pragma GCC unroll 4
    for (int b = 0; b < count; b++) r[b] = *(const LOOSE *)(row + b * LANES);
    row += count * LANES;
    if (half) of_half = *(const HALF *)row;
    if (quarter) of_quarter = *(const QUARTER *)(row + half * HALF_LANES);
    for (int64_t e = first; e < last; e++) {
        const REAL v = NAME(entry)(x, e, squared);
        REAL *w = W + NAME(column)(x, e, wide) * width;
        const int64_t next = e + AHEAD < end ? e + AHEAD : e;
        const REAL *later = W + NAME(column)(x, next, wide) * width;
        __builtin_prefetch(later, 1, 3);
        if (4 * count + rest > 4) __builtin_prefetch(later + width - 1, 1, 3);
#pragma GCC unroll 4
        for (int b = 0; b < count; b++) *(LOOSE *)(w + b * LANES) += v * r[b];
        w += count * LANES;
        if (half) *(HALF *)w += v * of_half;
        if (quarter) *(QUARTER *)(w + half * HALF_LANES) += v * of_quarter;
    }
}

/* The same for a single column, without vectors: W is a quarter as large. */
INLINE void NAME(gather_one)(const sparse *x, int64_t first, int64_t last, int64_t end, const REAL *W, const int squared, const int wide, REAL *row)
{
    REAL sum[4] = {0};
    int64_t e = first;
    for (; e + 4 <= last; e += 4)
#pragma GCC unroll 4
        for (int h = 0; h < 4; h++) {
            const int64_t next = e + h + AHEAD < end ? e + h + AHEAD : e;
            __builtin_prefetch(W + NAME(column)(x, next, wide), 0, 3);
            sum[h] += NAME(entry)(x, e + h, squared) * W[NAME(column)(x, e + h, wide)];
        }
    for (; e < last; e++) sum[0] += NAME(entry)(x, e, squared) * W[NAME(column)(x, e, wide)];
    *row = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

INLINE void NAME(scatter_one)(const sparse *x, int64_t first, int64_t last, int64_t end, REAL *W, const int squared, const int wide, const REAL *row)
{
    const REAL r = *row;
    for (int64_t e = first; e < last; e++) {
        const int64_t next = e + AHEAD < end ? e + AHEAD : e;
        __builtin_prefetch(W + NAME(column)(x, next, wide), 1, 3);
        W[NAME(column)(x, e, wide)] += NAME(entry)(x, e, squared) * r;
    }
}

#define SHAPE(DO, count, rest)                                                                    \
    case 4 * (count) + (rest): DO(x, first, last, end, W, width, count, rest, squared, wide, row); break;
#if BYTES == 64
#define SHAPES(DO)                                                                                \
    SHAPE(DO, 0, 1) SHAPE(DO, 0, 2) SHAPE(DO, 0, 3)                                               \
    SHAPE(DO, 1, 0) SHAPE(DO, 1, 1) SHAPE(DO, 1, 2) SHAPE(DO, 1, 3)                               \
    SHAPE(DO, 2, 0) SHAPE(DO, 2, 1) SHAPE(DO, 2, 2) SHAPE(DO, 2, 3)
#elif BYTES == 32
#define SHAPES(DO)                                                                                \
    SHAPE(DO, 0, 1) SHAPE(DO, 1, 0) SHAPE(DO, 1, 1) SHAPE(DO, 2, 0) SHAPE(DO, 2, 1)               \
    SHAPE(DO, 3, 0) SHAPE(DO, 3, 1) SHAPE(DO, 4, 0) SHAPE(DO, 4, 1)
#else
#define SHAPES(DO) SHAPE(DO, 1, 0) SHAPE(DO, 2, 0) SHAPE(DO, 3, 0) SHAPE(DO, 4, 0)
#endif

/* All columns of W: the widest rows take several walks. */
#define EVERY(all, DO, constant_W, constant_row)                                                  \
    INLINE void NAME(all)(const sparse *x, int64_t first, int64_t last, int64_t end, constant_W REAL *W, int64_t width, const int squared, const int wide, constant_row REAL *row) \
    {                                                                                             \
        if (width == 1) NAME(DO##_one)(x, first, last, end, W, squared, wide, row);               \
        if (width == 1) return;                                                                   \
        int64_t vectors = width / LANES;                                                          \
        const int64_t quarters = width % LANES / (LANES * 16 / BYTES);                            \
        for (; vectors > MOST; vectors -= MOST, W += MOST * LANES, row += MOST * LANES)           \
            NAME(DO)(x, first, last, end, W, width, MOST, 0, squared, wide, row);                 \
        switch (4 * vectors + quarters) {                                                         \
            SHAPES(NAME(DO))                                                                      \
        }                                                                                         \
    }
EVERY(gather_all, gather, const, )
EVERY(scatter_all, scatter, , const)
#undef EVERY
#undef SHAPES
#undef SHAPE
#undef MOST
#undef HALF_LANES
#undef QUARTER
#undef HALF
#undef LOOSE

static TARGET void NAME(gather_row)(const sparse *x, int64_t first, int64_t last, int64_t end, REAL *row, REAL *square_row)
{
    const REAL *W = x->weights, *B = x->square_weights;
    if (x->index_bytes == 8) {
        NAME(gather_all)(x, first, last, end, W, x->width, 0, 1, row);
        NAME(gather_all)(x, first, last, end, B, x->square_width, 1, 1, square_row);
    } else {
        NAME(gather_all)(x, first, last, end, W, x->width, 0, 0, row);
        NAME(gather_all)(x, first, last, end, B, x->square_width, 1, 0, square_row);
    }
}

static TARGET void NAME(scatter_row)(const sparse *x, int64_t first, int64_t last, int64_t end, const REAL *row)
{
    REAL *back = x->back, *back_squares = x->back_squares;
    const int64_t square_width = x->levelled ? 0 : x->back_square_width;
    if (x->index_bytes == 8) {
        NAME(scatter_all)(x, first, last, end, back, x->back_width, 0, 1, row);
        NAME(scatter_all)(x, first, last, end, back_squares, square_width, 1, 1, row);
    } else {
        NAME(scatter_all)(x, first, last, end, back, x->back_width, 0, 0, row);
        NAME(scatter_all)(x, first, last, end, back_squares, square_width, 1, 0, row);
    }
}

static REAL *NAME(after)(REAL *from, int64_t count)
{
    return (REAL *)(((uintptr_t)(from + count) + 63) / 64 * 64);
}

/* From sums over entries to sums over standardised rows. */
static TARGET void NAME(standardise_sums)(const pass *p, const sparse *x)
{
    const REAL *scale = x->scale, *shift = x->shift, level = (REAL)x->level;
    for (int64_t j = 0; j < p->d; j++) {
        REAL *back = (REAL *)x->back + j * x->back_width;
        REAL *squares = (REAL *)x->back_squares + j * x->back_square_width;
        for (int64_t c = 0; c < p->square_columns; c++) {
            const REAL square = x->levelled ? level * back[c] : squares[c];
            squares[c] = scale[j] * scale[j] * square - 2 * scale[j] * shift[j] * back[c]
                         + shift[j] * shift[j] * (REAL)x->totals[c];
        }
        for (int64_t c = 0; c < p->columns; c++)
            back[c] = scale[j] * back[c] - shift[j] * (REAL)x->totals[c];
    }
}

/* Lanes of two lists. */
typedef WHOLE NAME(lanes) __attribute__((vector_size(GROUP * sizeof(REAL))));

/* Turn eight rows of eight numbers into eight columns of them. */
INLINE void NAME(turn)(const REAL *from, int64_t stride, LIST *to)
{
    LIST a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = *(const LIST *)(from + i * stride);
    for (int i = 0; i < 8; i += 2) {
        b[i] = ZIPPED(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = ZIPPED(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int h = 0; h < 2; h++) {
            a[i + 2 * h] = ZIPPED(b[i + h], b[i + h + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[i + 2 * h + 1] = ZIPPED(b[i + h], b[i + h + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        to[i] = ZIPPED(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        to[i + 4] = ZIPPED(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* The products of a group of rows, which `gather_row` wrote one after the other, column by column. */
INLINE void NAME(lay_out)(const REAL *row, int64_t stride, const REAL *constant, int64_t columns, LIST *at, int more)
{
    LIST turned[GROUP];
    for (int64_t c = 0; c < columns; c += GROUP) {
        const int64_t count = columns - c < GROUP ? columns - c : GROUP;
        NAME(turn)(row + c, stride, turned);
        for (int64_t i = 0; i < count; i++)
            if (more) at[c + i] += turned[i];
            else at[c + i] = turned[i] - constant[c + i];
    }
}

/* All rows forward, then all rows back: the weights and the sums need the cache each on their own. */
static TARGET void NAME(run_sparse)(const pass *p, const sparse *x)
{
    const int64_t n = p->n, q = p->q, s = p->s, columns = p->columns;
    const int64_t stride = whole(x->width), square_stride = whole(x->square_width);
    const int64_t back_stride = whole(x->back_width);
    REAL *P = NAME(after)(p->memory, 0), *R = NAME(after)(P, (n + GROUP - 1) * (q + s));
    REAL *row = NAME(after)(R, back_stride * GROUP), *square_row = NAME(after)(row, stride * GROUP);
    REAL *back_row = NAME(after)(square_row, square_stride * GROUP);
    double *totals = (double *)NAME(after)(back_row, back_stride * GROUP);
    const int64_t end = NAME(place)(x, x->pointers, n);
    memset(row, 0, (stride + square_stride) * GROUP * sizeof(REAL) + 64);
    for (int64_t start = 0; q + s && start < n; start += GROUP) {
        const int rows = n - start < GROUP ? (int)(n - start) : GROUP;
        REAL *at = P + start * (q + s), *squares = at + q * GROUP;
        for (int g = 0; g < rows; g++) {
            const int64_t first = NAME(place)(x, x->pointers, start + g);
            const int64_t last = NAME(place)(x, x->pointers, start + g + 1);
            NAME(gather_row)(x, first, last, end, row + g * stride, square_row + g * square_stride);
        }
        NAME(lay_out)(row, stride, x->constant, q + s, (LIST *)at, 0);
        if (x->square_width) NAME(lay_out)(square_row, square_stride, NULL, s, (LIST *)squares, 1);
        NAME(hand_out)(p, start, rows, at, squares);
    }
    memset(R, 0, back_stride * GROUP * sizeof(REAL));
    memset(totals, 0, columns * GROUP * sizeof(double));
    for (int64_t start = 0; columns && start < n; start += GROUP) {
        const int rows = n - start < GROUP ? (int)(n - start) : GROUP;
        REAL *at = P + start * (q + s);
        if (rows < GROUP) memset(R, 0, columns * GROUP * sizeof(REAL));
        NAME(take_in)(p, start, rows, at, at + q * GROUP, R);
        for (int64_t c = 0; c < columns; c++)
            for (int g = 0; g < GROUP; g++) totals[c * GROUP + g] += (double)R[c * GROUP + g];
        for (int64_t c = 0; c < back_stride; c += GROUP) {
            LIST turned[GROUP];
            NAME(turn)(R + c * GROUP, GROUP, turned);
            for (int g = 0; g < GROUP; g++) *(LIST *)(back_row + g * back_stride + c) = turned[g];
        }
        for (int g = 0; g < rows; g++) {
            const int64_t first = NAME(place)(x, x->pointers, start + g);
            const int64_t last = NAME(place)(x, x->pointers, start + g + 1);
            NAME(scatter_row)(x, first, last, end, back_row + g * back_stride);
        }
    }
    for (int64_t c = 0; c < columns; c++)
        for (int g = 0; g < GROUP; g++) x->totals[c] += totals[c * GROUP + g];
    if (columns) NAME(standardise_sums)(p, x);
}
