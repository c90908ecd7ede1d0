/* What the evolutionary optimiser (evolve.c) and its merge (pareto.c) share: the DTLZ functions with two objectives
 * (Deb, Thiele, Laumanns and Zitzler, 2002), and files of solutions. Every operation is one of IEEE 754 or of the C library that is
 * linked in, so that a module computes the same bits on every machine. */
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define OBJECTIVES 2
#define VARIABLES_MAX 32
#define MAGIC 0x45564f4cu

typedef struct {
    double x[VARIABLES_MAX];
    double f[OBJECTIVES];
} Solution;

typedef struct {
    uint32_t magic, function, variables, count;
} Header;

static void die(const char *what, const char *which) {
    fprintf(stderr, "%s %s: %s\n", what, which, errno ? strerror(errno) : "it is not what it should be");
    exit(1);
}

/* How many variables a function has: one of the position, the others of the distance. */
static int variables(int function) { return function == 1 ? 6 : function == 7 ? 20 : 11; }

/* The solutions in a file; their number in count. NULL: there is no such file. */
static Solution *load(const char *path, int *function, int *count) {
    FILE *file = fopen(path, "rb");
    Header header;
    if (!file) return NULL;
    errno = 0;
    if (fread(&header, sizeof header, 1, file) != 1 || header.magic != MAGIC || header.count > 1u << 20
        || header.variables != (uint32_t)variables((int)header.function))
        die("cannot read", path);
    Solution *all = calloc(header.count + 1, sizeof *all);
    if (!all) die("no memory for", path);
    for (uint32_t i = 0; i < header.count; i++)
        if (fread(all[i].x, sizeof(double), header.variables, file) != header.variables
            || fread(all[i].f, sizeof(double), OBJECTIVES, file) != OBJECTIVES)
            die("cannot read", path);
    fclose(file);
    *function = (int)header.function;
    *count = (int)header.count;
    return all;
}

static void save(const char *path, int function, const Solution *all, int count) {
    Header header = {MAGIC, (uint32_t)function, (uint32_t)variables(function), (uint32_t)count};
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(&header, sizeof header, 1, file) != 1) die("cannot write", path);
    for (int i = 0; i < count; i++)
        if (fwrite(all[i].x, sizeof(double), header.variables, file) != header.variables
            || fwrite(all[i].f, sizeof(double), OBJECTIVES, file) != OBJECTIVES)
            die("cannot write", path);
    if (fclose(file)) die("cannot write", path);
}

static long number_of(const char *text, const char *what, long least, long most) {
    char *end;
    errno = 0;
    long number = text ? strtol(text, &end, 10) : 0;
    if (!text || end == text || *end || number < least || number > most) die("cannot use", what);
    return number;
}
