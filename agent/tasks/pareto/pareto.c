/* The merge of the evolutionary optimiser (../evolve/evolve.c): of the populations of all processes the solutions that none
 * dominates, at most 200 of them.
 *
 * Reads inputs/results/<process>/population, as many as there are. Leaves merged/front, for the processes, merged/front.csv, and
 * merged/front.svg, the picture. Prints the additive epsilon indicator: how far the front is, in the worst place, from the
 * function's true one, where that is known. With UNTIL_EPSILON in the environment, leaves ./converged once it is no larger. */
#include "../evolve/dtlz.h"

#define FRONT_MAX 200
#define REFERENCE 101

static int dominates(const Solution *a, const Solution *b) {
    return a->f[0] <= b->f[0] && a->f[1] <= b->f[1] && (a->f[0] < b->f[0] || a->f[1] < b->f[1]);
}

static int by_objectives(const void *left, const void *right) {
    const Solution *a = left, *b = right;
    for (int i = 0; i < OBJECTIVES; i++)
        if (a->f[i] != b->f[i]) return a->f[i] < b->f[i] ? -1 : 1;
    return memcmp(a->x, b->x, sizeof a->x);
}

/* Leaves out, again and again, the solution that lies closest to its neighbours. */
static int thin_out(Solution *front, int count) {
    while (count > FRONT_MAX) {
        int closest = 1;
        double least = 1e300;
        for (int i = 1; i + 1 < count; i++) {
            double gap = fabs(front[i + 1].f[0] - front[i - 1].f[0]) + fabs(front[i + 1].f[1] - front[i - 1].f[1]);
            if (gap < least) { least = gap; closest = i; }
        }
        memmove(&front[closest], &front[closest + 1], (size_t)(count - closest - 1) * sizeof *front);
        count--;
    }
    return count;
}

/* A point of the true front; 0: it is not known as a formula. */
static int reference(int function, double t, double f[OBJECTIVES]) {
    const double pi = 3.14159265358979323846;
    if (function == 7) return 0;
    f[0] = function == 1 ? 0.5 * t : cos(t * pi / 2);
    f[1] = function == 1 ? 0.5 * (1 - t) : sin(t * pi / 2);
    return 1;
}

static double epsilon(int function, const Solution *front, int count) {
    double worst = -1e300, f[OBJECTIVES];
    for (int k = 0; k < REFERENCE; k++) {
        if (!reference(function, k / (REFERENCE - 1.0), f)) return -1;
        double nearest = 1e300;
        for (int i = 0; i < count; i++) {
            double a = front[i].f[0] - f[0], b = front[i].f[1] - f[1], far = a > b ? a : b;
            if (far < nearest) nearest = far;
        }
        if (nearest > worst) worst = nearest;
    }
    return worst;
}

static void draw(const char *path, int function, const Solution *front, int count, const char *title) {
    FILE *file = fopen(path, "w");
    double most = 0, f[OBJECTIVES];
    if (!file) die("cannot write", path);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < OBJECTIVES; k++)
            if (front[i].f[k] > most) most = front[i].f[k];
    if (most <= 0) most = 1;
    double scale = 400 / (most * 1.05);
    fprintf(file, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"500\" height=\"500\" font-family=\"sans-serif\" font-size=\"12\">\n"
                  "<rect width=\"500\" height=\"500\" fill=\"white\"/>\n<text x=\"60\" y=\"30\">%s</text>\n"
                  "<path d=\"M60 50V450H460\" fill=\"none\" stroke=\"black\"/>\n", title);
    for (int k = 0; k <= 4; k++) {
        double value = most * k / 4;
        fprintf(file, "<text x=\"%.1f\" y=\"468\" text-anchor=\"middle\">%.3g</text>\n", 60 + value * scale, value);
        fprintf(file, "<text x=\"54\" y=\"%.1f\" text-anchor=\"end\">%.3g</text>\n", 454 - value * scale, value);
    }
    fprintf(file, "<text x=\"260\" y=\"490\" text-anchor=\"middle\">f1</text><text x=\"16\" y=\"250\">f2</text>\n");
    if (reference(function, 0, f)) {
        fprintf(file, "<polyline fill=\"none\" stroke=\"silver\" stroke-width=\"2\" points=\"");
        for (int k = 0; k < REFERENCE; k++) {
            reference(function, k / (REFERENCE - 1.0), f);
            fprintf(file, "%.1f,%.1f ", 60 + f[0] * scale, 450 - f[1] * scale);
        }
        fprintf(file, "\"/>\n");
    }
    for (int i = 0; i < count; i++)
        fprintf(file, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\" fill=\"teal\"/>\n", 60 + front[i].f[0] * scale, 450 - front[i].f[1] * scale);
    fprintf(file, "</svg>\n");
    if (fclose(file)) die("cannot write", path);
}

int main(void) {
    long processes = number_of(getenv("IDLEWOOD_PROCESSES"), "IDLEWOOD_PROCESSES", 1, 1l << 20);
    Solution *all = NULL;
    int total = 0, function = 0, kept = 0;
    for (long process = 0; process < processes; process++) {
        char path[64];
        int of, count;
        snprintf(path, sizeof path, "inputs/results/%ld/population", process);
        Solution *some = load(path, &of, &count);
        /* Not every process has a result yet where none waits for another. */
        if (!some) continue;
        if (function && of != function) { errno = 0; die("another application's", path); }
        function = of;
        all = realloc(all, (size_t)(total + count) * sizeof *all);
        if (!all) die("no memory for", path);
        memcpy(&all[total], some, (size_t)count * sizeof *all);
        total += count;
        free(some);
    }
    if (!total) { errno = 0; die("no population in", "inputs/results"); }
    /* In the order of the first objective a solution is dominated by one before it, or by none. */
    qsort(all, (size_t)total, sizeof *all, by_objectives);
    for (int i = 0; i < total; i++)
        if (!kept || (!dominates(&all[kept - 1], &all[i]) && memcmp(all[kept - 1].f, all[i].f, sizeof all[i].f)))
            all[kept++] = all[i];
    kept = thin_out(all, kept);

    if (mkdir("merged", 0777)) die("cannot make", "merged");
    save("merged/front", function, all, kept);
    FILE *csv = fopen("merged/front.csv", "w");
    if (!csv) die("cannot write", "merged/front.csv");
    fprintf(csv, "f1,f2\n");
    for (int i = 0; i < kept; i++) fprintf(csv, "%.17g,%.17g\n", all[i].f[0], all[i].f[1]);
    if (fclose(csv)) die("cannot write", "merged/front.csv");
    const char *round = getenv("IDLEWOOD_ROUND"), *until = getenv("UNTIL_EPSILON");
    double far = epsilon(function, all, kept);
    char title[120];
    int length = snprintf(title, sizeof title, "DTLZ%d after round %ld: %d solutions", function, round ? atol(round) + 1 : 1, kept);
    if (far >= 0) snprintf(title + length, sizeof title - (size_t)length, ", epsilon %.4f", far);
    draw("merged/front.svg", function, all, kept, title);
    printf("%s\n", title);
    if (until && far >= 0 && far <= atof(until)) {
        FILE *converged = fopen("converged", "w");
        if (!converged || fclose(converged)) die("cannot write", "converged");
    }
    return 0;
}
