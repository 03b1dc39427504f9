/* A pass over dense rows; included once per kind of number and set of instructions. */

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

/* The same for a whole group of rows of this kind of number, so that means and scales are read once. */
static TARGET void NAME(standardise_group)(const pass *p, int64_t start, int64_t width, REAL *restrict z)
{
    const REAL *mean = p->mean, *scale = p->scale, *rest = p->rest;
    const char *x = p->x + start * p->x_row;
    int64_t j = 0;
    for (; j + LANES <= p->d; j += LANES) {
        VEC v, m, s, r;
        memcpy(&m, mean + j, sizeof v), memcpy(&s, scale + j, sizeof v), memcpy(&r, rest + j, sizeof v);
#pragma GCC unroll 8
        for (int g = 0; g < GROUP; g++) {
            memcpy(&v, x + g * p->x_row + j * sizeof(REAL), sizeof v);
            *(VEC *)(z + g * width + j) = (v - m) * s - r;
        }
    }
    for (; j < p->d; j++)
        for (int g = 0; g < GROUP; g++)
            z[g * width + j] = (((const REAL *)(x + g * p->x_row))[j] - mean[j]) * scale[j] - rest[j];
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

/* Lanes of a or, where `stride` is set in their number, of b; each plus the lane `stride` away. */
#define HERE(l, stride) ((l) & (stride) ? BYTES / SIZE + (l) : (l))
#define THERE(l, stride) (HERE(l, stride) ^ (stride))
#define CROSSED(a, b, stride)                                                                     \
    (SHUFFLED(a, b, EACH(HERE, stride)) + SHUFFLED(a, b, EACH(THERE, stride)))

/* out[g] = the sum of the lanes of the g-th vector. Vectors are added crosswise in pairs until each lane
 * is a part of the sum of one of them: a quarter of the instructions of one sum after the other. */
INLINE void NAME(across)(VEC *v, REAL *out)
{
#pragma GCC unroll 4
    for (int g = 0; g < ROWS / 2; g++) v[g] = CROSSED(v[2 * g], v[2 * g + 1], 1);
#if BYTES / SIZE > 2
#pragma GCC unroll 2
    for (int g = 0; g < ROWS / 4; g++) v[g] = CROSSED(v[2 * g], v[2 * g + 1], 2);
#endif
#if ROWS > 4
    v[0] = CROSSED(v[0], v[1], 4);
#endif
#if BYTES / SIZE > ROWS
    v[0] = CROSSED(v[0], v[0], ROWS);
#endif
    memcpy(out, v, ROWS * sizeof(REAL));
}
#undef HERE
#undef THERE
#undef CROSSED

/* out[c][g] = sum_j z[g][j] Q[c][j] for ROWS rows and a few columns, held in registers. */
INLINE void NAME(tile)(const REAL *z, const REAL *Q, int64_t width, int columns, int squared, REAL *out, ahead *next)
{
    VEC sum[3][ROWS];
#pragma GCC unroll 3
    for (int c = 0; c < columns; c++)
#pragma GCC unroll 8
        for (int g = 0; g < ROWS; g++) sum[c][g] = (VEC){0};
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
            for (int c = 0; c < columns; c++) sum[c][g] += v * q[c];
        }
    }
#pragma GCC unroll 3
    for (int c = 0; c < columns; c++) NAME(across)(sum[c], out + c * GROUP);
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
    const int alike = p->x_bytes == sizeof(REAL) && p->x_column == sizeof(REAL);
    memset(z, 0, GROUP * width * sizeof(REAL));
    memset(back, 0, sums * width * sizeof(REAL));
    memset(R, 0, p->columns * GROUP * sizeof(REAL));
    NAME(padded)(Q, width, p->Q, p->q, d);
    NAME(padded)(S, width, p->S, p->s, d);
    for (int64_t start = 0; start < n; start += GROUP) {
        const int rows = n - start < GROUP ? (int)(n - start) : GROUP;
        if (alike && rows == GROUP) NAME(standardise_group)(p, start, width, z);
        else NAME(standardise)(p, start, rows, width, z);
        if (rows < GROUP) memset(z + rows * width, 0, (GROUP - rows) * width * sizeof(REAL));
        ahead next = {p->x + (start + GROUP) * p->x_row};
        NAME(forward)(z, Q, width, p->q, P, &next);
        NAME(forward_squares)(z, S, width, p->s, PS, &next);
        NAME(hand_out)(p, start, rows, P, PS);
        NAME(take_in)(p, start, rows, P, PS, R);
        NAME(backward)(z, R, width, p->columns, back, &next);
        NAME(backward_squares)(z, R, width, p->square_columns, back_squares, &next);
    }
    NAME(unpadded)(p->back, d, back, p->columns, width);
    NAME(unpadded)(p->back_squares, d, back_squares, p->square_columns, width);
}
