/* The objective in the plane of a sweep and the step before it; included after `_passes_columns.h`.
 *
 * Let x be where a sweep ended, a its step, and b the step before it, all three of V and w. At x + ta + ub,
 * errors, levels and sums of products of factors are polynomials in 1, t, u, tt, tu, uu. The objective is a
 * sum of their squares, so that matrices of products of their coefficients give it for all t and u.
 */

/* Coefficients of the error of a row: of the squares of x_j v_j that a model leaves out, a sweep adds up
 * those of a a and of a b, in the row, and those of b b are in its past. The last is 1, for the means. */
INLINE eight NAME(row_in_plane)(const REAL *row, const REAL *past, const REAL *signs, int64_t width, const int parts)
{
    NAME(octet) aa = {0}, ab = {0}, bb = {0};
    for (int c = 0; c < parts; c++) {
        const NAME(octet) s = *(const NAME(octet) *)(signs + 8 * c), b = *(const NAME(octet) *)(past + width + 8 * c);
        const NAME(octet) a = *(const NAME(octet) *)(row + 8 * c) - *(const NAME(octet) *)(past + 8 * c);
        aa += s * a * a, ab += s * a * b, bb += s * b * b;
    }
    row += width, past += 2 * width;
    const double tt = (double)NAME(total)(aa) - row[3], tu = 2 * ((double)NAME(total)(ab) - row[4]);
    const double uu = (double)NAME(total)(bb) - past[2];
    return (eight){row[0], (double)row[0] - past[0] + tt, past[1] + uu + tu, tt, tu, uu, 1, 0};
}

/* Add up the lanes of each of eight vectors. */
INLINE eight NAME(sums_of)(const eight *v)
{
    eight four[4], two[2];
    for (int a = 0; a < 4; a++)
        four[a] = PICKED(v[a], v[a + 4], 0, 1, 2, 3, 8, 9, 10, 11) +
                  PICKED(v[a], v[a + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    for (int a = 0; a < 2; a++)
        two[a] = PICKED(four[a], four[a + 2], 0, 1, 8, 9, 4, 5, 12, 13) +
                 PICKED(four[a], four[a + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    return PICKED(two[0], two[1], 0, 8, 2, 10, 4, 12, 6, 14) +
           PICKED(two[0], two[1], 1, 9, 3, 11, 5, 13, 7, 15);
}

/* Read v, a and b of a column. */
INLINE void NAME(column_in_plane)(const columns *t, int64_t j, eight x[][4], const int parts)
{
    const int64_t width = t->width;
    const REAL *now = (const REAL *)t->factors + j * width, *past = (const REAL *)t->past_factors + 2 * j * width;
    for (int c = 0; c < parts; c++) {
        x[0][c] = NAME(widened)(now + 8 * c), x[1][c] = x[0][c] - NAME(widened)(past + 8 * c);
        x[2][c] = NAME(widened)(past + width + 8 * c);
    }
}

/* Add up the products of coefficients: of errors, of levels, and of sums of products of v, a and b. */
INLINE void NAME(plane_of)(columns *t, const int parts)
{
    const int64_t width = t->width, stride = width + 8, older = 2 * width + 8;
    const REAL *w = t->linear, *w_past = t->past_linear;
    const eight *s = (const eight *)t->signs;
    REAL signs[MOST_WIDTH] __attribute__((aligned(64)));
    eight sum[8], centre[3][4], x[3][4];
    for (int c = 0; c < 8 * parts; c++) signs[c] = (REAL)t->signs[c];
    STORED(signs);
    for (int a = 0; a < 8; a++) sum[a] = (eight){0};
    for (int64_t i = 0; i < t->n; i++) {
        const REAL *row = (const REAL *)t->state + i * stride;
        const eight z = NAME(row_in_plane)(row, (const REAL *)t->past + i * older, signs, width, parts);
        const eight much = (double)row[width + 1] * z;
        for (int a = 0; a < 7; a++) sum[a] += z[a] * much;
    }
    for (int a = 0; a < 8; a++) ((eight *)t->errors_plane)[a] = sum[a], sum[a] = (eight){0};
    for (int c = 0; c < parts; c++) {
        const eight *past = (const eight *)t->past_centre + c;
        centre[0][c] = ((const eight *)t->centre)[c], centre[1][c] = centre[0][c] - past[0], centre[2][c] = past[parts];
    }
    for (int a = 0; a < 6 * 8 * parts * parts; a++) ((eight *)t->products_plane)[a] = (eight){0};
    for (int64_t start = 0; start < t->d; start += BATCH) {
        REAL plain[3][BATCH][MOST_WIDTH] __attribute__((aligned(64))), much[3][BATCH][MOST_WIDTH] __attribute__((aligned(64)));
        const int count = t->d - start < BATCH ? (int)(t->d - start) : BATCH;
        for (int i = 0; i < count; i++) {
            const int64_t j = start + i;
            eight part[8], near[3];
            for (int a = 0; a < 8; a++) part[a] = (eight){0};
            NAME(column_in_plane)(t, j, x, parts);
            for (int c = 0; c < parts; c++) {
                for (int u = 0; u < 3; u++) {
                    const NAME(octet) narrow = NAME(narrow)(x[u][c]);
                    near[u] = 2 * s[c] * (centre[u][c] - t->mean[j] * x[u][c]);
                    *(NAME(octet) *)(plain[u][i] + 8 * c) = narrow;
                    *(NAME(octet) *)(much[u][i] + 8 * c) = (REAL)t->penalty[j] * narrow;
                }
                part[0] += x[0][c] * near[0], part[1] += x[1][c] * near[0] + x[0][c] * near[1];
                part[2] += x[2][c] * near[0] + x[0][c] * near[2], part[3] += x[1][c] * near[1];
                part[4] += x[1][c] * near[2] + x[2][c] * near[1], part[5] += x[2][c] * near[2];
            }
            const eight z = NAME(sums_of)(part) + (eight){w[j], (double)w[j] - w_past[2 * j], w_past[2 * j + 1]};
            const eight weighted = t->penalty[j] * z;
            for (int a = 0; a < 6; a++) sum[a] += z[a] * weighted;
        }
        eight *into = (eight *)t->products_plane; /* of v v, v a, v b, a a, a b, b b */
        for (int u = 0; u < 3; u++)
            for (int other = u; other < 3; other++)
                for (int from = 0; from < 8 * parts; from += 8)
                    for (int c = 0; c < parts; c++) {
                        NAME(octet) part[8];
                        for (int a = 0; a < 8; a++) part[a] = (NAME(octet)){0};
                        for (int i = 0; i < count; i++) {
                            const NAME(octet) beside = *(const NAME(octet) *)(much[other][i] + 8 * c);
                            for (int a = 0; a < 8; a++) part[a] += plain[u][i][from + a] * beside;
                        }
                        eight *rows = into + ((u * (5 - u) / 2 + other) * 8 * parts + from) * parts + c;
                        for (int a = 0; a < 8; a++) rows[a * parts] += NAME(wide)(part[a]);
                    }
    }
    for (int a = 0; a < 8; a++) ((eight *)t->levels_plane)[a] = sum[a];
}

/* Go from x to x + ta + ub, move the errors by `shift`, and keep both as the past of the next sweep. `centre` is
 * that of the new place; `pull` is found, see `survey`. */
INLINE void NAME(move_of)(columns *t, const int parts)
{
    const int64_t width = t->width, stride = width + 8, older = 2 * width + 8;
    const double by = t->along, before = t->along_before;
    const REAL whole = (REAL)(1 + by), rest = (REAL)before;
    REAL signs[MOST_WIDTH] __attribute__((aligned(64)));
    for (int c = 0; c < 8 * parts; c++) signs[c] = (REAL)t->signs[c];
    STORED(signs);
    for (int64_t i = 0; i < t->n; i++) {
        REAL *row = (REAL *)t->state + i * stride, *past = (REAL *)t->past + i * older;
        const eight z = NAME(row_in_plane)(row, past, signs, width, parts);
        const double line = z[1] + by * z[3] + before * z[4], other = z[2] + before * z[5];
        const REAL error = (REAL)(z[0] + by * line + before * other - t->shift);
        for (int c = 0; c < 8 * parts; c += 8) {
            NAME(octet) *now = (NAME(octet) *)(row + c), *old = (NAME(octet) *)(past + c);
            NAME(octet) *step = (NAME(octet) *)(past + width + c);
            *step = whole * (*now - *old) + rest * *step;
            *now = *old = *old + *step;
        }
        row += width, past += 2 * width;
        past[2] = whole * whole * row[3] + 2 * whole * rest * row[4] + rest * rest * past[2];
        past[1] = error - past[0], past[0] = row[0] = error, row[3] = row[4] = 0;
    }
    REAL *V = t->factors, *w = t->linear, *V_past = t->past_factors, *w_past = t->past_linear;
    const eight *s = (const eight *)t->signs, *m = (const eight *)t->centre;
    eight *p = (eight *)t->pull;
    for (int b = 0; b < parts; b++) p[b] = (eight){0};
    for (int64_t j = 0; j < t->d; j++) {
        eight v[4], near[4];
        for (int c = 0; c < 8 * parts; c += 8) {
            NAME(octet) *now = (NAME(octet) *)(V + j * width + c), *old = (NAME(octet) *)(V_past + 2 * j * width + c);
            NAME(octet) *step = (NAME(octet) *)(V_past + (2 * j + 1) * width + c);
            *step = whole * (*now - *old) + rest * *step;
            *now = *old = *old + *step;
        }
        w_past[2 * j + 1] = whole * (w[j] - w_past[2 * j]) + rest * w_past[2 * j + 1];
        w[j] = w_past[2 * j] = w_past[2 * j] + w_past[2 * j + 1];
        for (int b = 0; b < parts; b++) {
            v[b] = NAME(widened)(V + j * width + 8 * b);
            near[b] = s[b] * (m[b] - t->mean[j] * v[b]);
        }
        const double much = t->penalty[j] * (w[j] + 2 * NAME(dot)(near, v, parts));
        for (int b = 0; b < parts; b++) p[b] += much * v[b];
    }
}

/* Begin at the current model: no step before it but what is in the past already. */
INLINE void NAME(mark_of)(columns *t, const int parts)
{
    const int64_t width = t->width, stride = width + 8, older = 2 * width + 8;
    for (int64_t i = 0; i < t->n; i++) {
        REAL *row = (REAL *)t->state + i * stride, *past = (REAL *)t->past + i * older;
        for (int c = 0; c < 8 * parts; c++) past[c] = row[c];
        past[2 * width] = row[width], row[width + 3] = row[width + 4] = 0;
    }
}

/* Replace the factors v of a row or a column by v T. */
INLINE void NAME(turn_factors)(REAL *v, const eight *T, const int parts)
{
    eight sum[4];
    for (int b = 0; b < parts; b++) sum[b] = (eight){0};
    for (int a = 0; a < 8 * parts; a++)
        for (int b = 0; b < parts; b++) sum[b] += (double)v[a] * T[a * parts + b];
    for (int b = 0; b < parts; b++) *(NAME(octet) *)(v + 8 * b) = NAME(narrow)(sum[b]);
}

/* Replace V by V T, also in rows and in the past. */
INLINE void NAME(rotate_of)(columns *t, const int parts)
{
    const int64_t width = t->width;
    const eight *T = (const eight *)t->rotation;
    for (int64_t i = 0; i < t->n; i++) {
        REAL *past = (REAL *)t->past + i * (2 * width + 8);
        NAME(turn_factors)((REAL *)t->state + i * (width + 8), T, parts);
        NAME(turn_factors)(past, T, parts), NAME(turn_factors)(past + width, T, parts);
    }
    for (int64_t j = 0; j < t->d; j++) {
        REAL *past = (REAL *)t->past_factors + 2 * j * width;
        NAME(turn_factors)((REAL *)t->factors + j * width, T, parts);
        NAME(turn_factors)(past, T, parts), NAME(turn_factors)(past + width, T, parts);
    }
}

OF_PARTS(plane)
OF_PARTS(rotate)
OF_PARTS(move)
OF_PARTS(mark)
#undef OF_PARTS
