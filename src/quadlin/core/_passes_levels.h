/* Small systems of equations, one per level of a field; included once per set of instructions.
 *
 * Arrays keep the levels last, so that the lanes of a vector are eight levels and no lane waits for
 * another. `level_posterior.py` and `field_sums.py` in `solve/fields` say the same in numpy.
 */

/* Eight levels of an array, or the last few of them and zeros. */
INLINE eight NAME(taken)(const double *at, int count)
{
    if (count == 8) return *(const eight *)at;
    eight v = {0};
    for (int g = 0; g < count; g++) v[g] = at[g];
    return v;
}

INLINE void NAME(put)(double *at, int count, eight v)
{
    if (count == 8) *(eight *)at = v;
    else
        for (int g = 0; g < count; g++) at[g] = v[g];
}

INLINE double NAME(added_lanes)(eight v, int count)
{
    double sum = 0;
    for (int g = 0; g < count; g++) sum += v[g];
    return sum;
}

/* In place of the lower triangle of P, the inverse of its Cholesky factor. */
INLINE void NAME(invert)(eight *P, eight *diagonal, const int64_t K)
{
    for (int64_t j = 0; j < K; j++) {
        eight root = P[j * K + j];
        for (int g = 0; g < 8; g++) root[g] = 1 / sqrt(root[g]);
        diagonal[j] = root;
        for (int64_t i = j + 1; i < K; i++) P[i * K + j] *= root;
        for (int64_t i = j + 1; i < K; i++) {
            const eight along = P[i * K + j];
            for (int64_t c = j + 1; c <= i; c++) P[i * K + c] -= along * P[c * K + j];
        }
    }
    for (int64_t j = 0; j < K; j++) {
        for (int64_t c = 0; c < j; c++) {
            eight sum = P[j * K + c] * diagonal[c];
            for (int64_t i = c + 1; i < j; i++) sum += P[j * K + i] * P[i * K + c];
            P[j * K + c] = sum; /* columns before c are through, those after it are still the factor's */
        }
        for (int64_t c = 0; c < j; c++) P[j * K + c] *= -diagonal[j];
        P[j * K + j] = diagonal[j];
    }
}

/* The factor of each level, and the sums that the mean of their group needs. */
TARGET static void NAME(factorise)(systems *t)
{
    const int64_t K = t->K, L = t->L;
    eight P[MOST_UNKNOWNS * MOST_UNKNOWNS], diagonal[MOST_UNKNOWNS], half[MOST_UNKNOWNS];
    memset(t->spread, 0, K * K * sizeof(double));
    memset(t->pull, 0, K * sizeof(double));
    for (int64_t start = 0; start < L; start += 8) {
        const int count = L - start < 8 ? (int)(L - start) : 8;
        for (int64_t a = 0; a < K; a++)
            for (int64_t b = 0; b <= a; b++) {
                P[a * K + b] = t->noise * NAME(taken)(t->A + (a * K + b) * L + start, count);
                if (a == b) P[a * K + b] += t->precision[a];
            }
        NAME(invert)(P, diagonal, K);
        for (int64_t a = 0; a < K; a++) {
            half[a] = (eight){0};
            for (int64_t b = 0; b <= a; b++)
                half[a] += P[a * K + b] * (t->noise * NAME(taken)(t->r + b * L + start, count));
            for (int64_t b = 0; b < K; b++)
                NAME(put)(t->factor + (a * K + b) * L + start, count, b <= a ? P[a * K + b] : (eight){0});
        }
        for (int64_t a = 0; a < K; a++) {
            eight pull = {0};
            for (int64_t c = a; c < K; c++) pull += P[c * K + a] * half[c];
            t->pull[a] += NAME(added_lanes)(pull, count);
            for (int64_t b = 0; b <= a; b++) {
                eight spread = {0};
                for (int64_t c = a; c < K; c++) spread += P[c * K + a] * P[c * K + b];
                t->spread[a * K + b] += NAME(added_lanes)(spread, count);
            }
        }
    }
    for (int64_t a = 0; a < K; a++)
        for (int64_t b = 0; b < a; b++) t->spread[b * K + a] = t->spread[a * K + b];
}

/* Of each level what is asked for: factor' factor r or factor' z, and factor' factor. */
TARGET static void NAME(solve_levels)(systems *t)
{
    const int64_t K = t->K, L = t->L;
    eight F[MOST_UNKNOWNS * MOST_UNKNOWNS], half[MOST_UNKNOWNS];
    for (int64_t start = 0; start < L; start += 8) {
        const int count = L - start < 8 ? (int)(L - start) : 8;
        for (int64_t a = 0; a < K; a++)
            for (int64_t b = 0; b <= a; b++)
                F[a * K + b] = NAME(taken)(t->factor + (a * K + b) * L + start, count);
        for (int64_t a = 0; a < K; a++) {
            if (t->z) half[a] = NAME(taken)(t->z + a * L + start, count);
            if (!t->r) continue;
            half[a] = (eight){0};
            for (int64_t b = 0; b <= a; b++) half[a] += F[a * K + b] * NAME(taken)(t->r + b * L + start, count);
        }
        for (int64_t a = 0; a < K; a++) {
            if (t->solution) {
                eight sum = {0};
                for (int64_t c = a; c < K; c++) sum += F[c * K + a] * half[c];
                NAME(put)(t->solution + a * L + start, count, sum);
            }
            if (!t->cov) continue;
            for (int64_t b = 0; b <= a; b++) {
                eight cov = {0};
                for (int64_t c = a; c < K; c++) cov += F[c * K + a] * F[c * K + b];
                NAME(put)(t->cov + (a * K + b) * L + start, count, cov);
                if (b < a) NAME(put)(t->cov + (b * K + a) * L + start, count, cov);
            }
        }
    }
}

/* What is left of h, level by level: h - G theta. */
TARGET static void NAME(remain)(evidence *t)
{
    const int64_t K = t->K, p = t->p;
    for (int64_t start = 0; start < p; start += 8) {
        const int count = p - start < 8 ? (int)(p - start) : 8;
        eight theta[MOST_UNKNOWNS];
        for (int64_t a = 0; a < K; a++) theta[a] = NAME(taken)(t->rest + a * p + start, count);
        for (int64_t a = 0; a < K; a++) {
            eight left = NAME(taken)(t->h + a * p + start, count);
            for (int64_t b = 0; b < K; b++)
                left -= NAME(taken)(t->G + (a * K + b) * p + start, count) * theta[b];
            NAME(put)(t->r + a * p + start, count, left);
        }
    }
}

/* A = sum of x^2 G and r = sum of x (h - G rest) over the patterns of each level, zero at first. */
TARGET static void NAME(gather_evidence)(evidence *t)
{
    const int64_t K = t->K, p = t->p, L = t->L;
    for (int64_t i = 0; i < t->m; i++) {
        const int64_t at = t->where[i], level = t->level[i];
        const double x = t->x[i];
        double rest[MOST_UNKNOWNS], left[MOST_UNKNOWNS];
        for (int64_t a = 0; a < K; a++) rest[a] = t->rest[a * t->m + i], left[a] = t->h[a * p + at];
        for (int64_t a = 0; a < K; a++)
            for (int64_t b = 0; b <= a; b++) {
                const double G = t->G[(a * K + b) * p + at];
                t->A[(a * K + b) * L + level] += x * x * G;
                left[a] -= G * rest[b];
                if (b < a) left[b] -= G * rest[a];
            }
        for (int64_t a = 0; a < K; a++) t->r[a * L + level] += x * left[a];
    }
    for (int64_t a = 0; a < K; a++)
        for (int64_t b = 0; b < a; b++)
            memcpy(t->A + (b * K + a) * L, t->A + (a * K + b) * L, L * sizeof(double));
}

/* For each pattern of the other entity: the products of q with itself, by upper triangles, then o q. */
INLINE void NAME(tabulate)(const meetings *t)
{
    const int64_t K = t->K, others = t->others, width = t->width;
    for (int64_t start = 0; start < others; start += 8) {
        const int count = others - start < 8 ? (int)(others - start) : 8;
        const eight o = NAME(taken)(t->mean + start, count) + t->intercept;
        eight q[MOST_UNKNOWNS];
        double *table = t->table + start * width;
        q[0] = (eight){1, 1, 1, 1, 1, 1, 1, 1};
        for (int64_t a = 1; a < K; a++) q[a] = t->signs[a] * NAME(taken)(t->mean + a * others + start, count);
        for (int64_t a = 0; a < K; a++)
            for (int64_t b = a; b < K; b++) {
                eight product = q[a] * q[b];
                if (t->cov && a)
                    product += t->signs[a] * t->signs[b] * NAME(taken)(t->cov + (a * K + b) * others + start, count);
                for (int g = 0; g < count; g++) table[g * width] = product[g];
                table++;
            }
        for (int64_t a = 0; a < K; a++) {
            eight offset = o * q[a];
            if (t->cov && a) offset += t->signs[a] * NAME(taken)(t->cov + a * others + start, count);
            for (int g = 0; g < count; g++) table[g * width] = offset[g];
            table++;
        }
    }
}

/* sums[c] = sum over entries of a pattern of value table[at][c], for `vectors` of eight numbers. */
INLINE void NAME(add_table)(const meetings *t, const double *value, int64_t first, int64_t last, const double *table, const int vectors, double *sums)
{
    eight sum[8];
    for (int v = 0; v < vectors; v++) sum[v] = (eight){0};
    for (int64_t e = first; e < last; e++) {
        const double *row = table + t->at[e] * t->width;
        for (int v = 0; v < vectors; v++) sum[v] += value[e] * ((const eight *)row)[v];
    }
    for (int v = 0; v < vectors; v++) ((eight *)sums)[v] = sum[v];
}

INLINE void NAME(add_tables)(const meetings *t, const double *value, int64_t first, int64_t last, int64_t width, double *sums)
{
    for (int64_t c = 0; c < width; c += 64) {
        const double *table = t->table + c;
        switch (width - c < 64 ? (width - c) / 8 : 8) {
        case 1: NAME(add_table)(t, value, first, last, table, 1, sums + c); break;
        case 2: NAME(add_table)(t, value, first, last, table, 2, sums + c); break;
        case 3: NAME(add_table)(t, value, first, last, table, 3, sums + c); break;
        case 4: NAME(add_table)(t, value, first, last, table, 4, sums + c); break;
        case 5: NAME(add_table)(t, value, first, last, table, 5, sums + c); break;
        case 6: NAME(add_table)(t, value, first, last, table, 6, sums + c); break;
        case 7: NAME(add_table)(t, value, first, last, table, 7, sums + c); break;
        default: NAME(add_table)(t, value, first, last, table, 8, sums + c);
        }
    }
}

/* What the rows say about each pattern: G = sum of count qq', h = sum of target q - count o q. */
TARGET static void NAME(meet)(const meetings *t)
{
    const int64_t K = t->K, p = t->p, triangle = K * (K + 1) / 2;
    double sums[8][MOST_NUMBERS] __attribute__((aligned(64)));
    double targets[8][MOST_UNKNOWNS + 7] __attribute__((aligned(64)));
    NAME(tabulate)(t);
    for (int64_t start = 0; start < p; start += 8) {
        const int count = p - start < 8 ? (int)(p - start) : 8;
        for (int g = 0; g < count; g++) {
            const int64_t first = t->starts[start + g], last = t->starts[start + g + 1];
            NAME(add_tables)(t, t->count, first, last, t->width, sums[g]);
            NAME(add_tables)(t, t->target, first, last, (K + 7) / 8 * 8, targets[g]); /* q is 1 q */
        }
        int64_t place = 0;
        for (int64_t a = 0; a < K; a++)
            for (int64_t b = a; b < K; b++, place++) {
                double *above = t->G + (a * K + b) * p + start, *below = t->G + (b * K + a) * p + start;
                for (int g = 0; g < count; g++) above[g] = below[g] = sums[g][place];
            }
        for (int64_t a = 0; a < K; a++)
            for (int g = 0; g < count; g++)
                t->h[a * p + start + g] = targets[g][a] - sums[g][triangle + a];
    }
}

/* The products of each entry: of the moments of its pattern with the table of the other one. */
TARGET static void NAME(square)(const meetings *t)
{
    const int64_t width = t->width;
    NAME(tabulate)(t);
    for (int64_t g = 0; g < t->p; g++)
        for (int64_t e = t->starts[g]; e < t->starts[g + 1]; e++) {
            const double *moments = t->moments + g * width, *row = t->table + t->at[e] * width;
            eight sum = {0};
            for (int64_t c = 0; c < width; c += 8) sum += *(const eight *)(moments + c) * *(const eight *)(row + c);
            t->squares[e] = NAME(added_lanes)(sum, 8);
        }
}
