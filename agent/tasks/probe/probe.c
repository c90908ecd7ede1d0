/*
 * probe: what the tests of the worker run. The first argument chooses what it does.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static volatile uint64_t sink;

static int copy(const char *from, FILE *to) {
  FILE *in = from == NULL ? stdin : fopen(from, "rb");
  char buffer[4096];
  size_t n;
  if (in == NULL) {
    fprintf(stderr, "%s: %s\n", from, strerror(errno));
    return 1;
  }
  while ((n = fread(buffer, 1, sizeof buffer, in)) > 0) fwrite(buffer, 1, n, to);
  return ferror(in) ? 1 : 0;
}

/* What happened to an attempt that ought to fail. */
static void attempt(const char *what, int failed) { printf("%s: %s\n", what, failed ? strerror(errno) : "done"); }

static int list(const char *path) {
  DIR *dir = opendir(path);
  struct dirent *entry;
  if (dir == NULL) {
    printf("%s: %s\n", path, strerror(errno));
    return 1;
  }
  while ((entry = readdir(dir)) != NULL)
    if (entry->d_name[0] != '.') printf("%s/%s\n", path, entry->d_name);
  closedir(dir);
  return 0;
}

static uint64_t recurse(uint64_t depth) {
  volatile uint64_t here = depth;
  return recurse(depth + 1) + here;
}

int main(int argc, char **argv) {
  const char *verb = argc > 1 ? argv[1] : "";
  long number = argc > 2 ? strtol(argv[2], NULL, 10) : 0;

  if (!strcmp(verb, "hello")) {
    printf("hello from %s\n", argv[0]);
    for (int i = 1; i < argc; i++) printf("argument %s\n", argv[i]);
    for (char **e = environ; *e != NULL; e++) printf("environment %s\n", *e);
    fprintf(stderr, "and to stderr\n");
    return 0;
  }
  if (!strcmp(verb, "exit")) return (int)number;
  if (!strcmp(verb, "cat")) return copy(argc > 2 ? argv[2] : NULL, stdout);
  if (!strcmp(verb, "write")) { /* write PATH TEXT */
    FILE *out = fopen(argv[2], "wb");
    if (out == NULL) {
      fprintf(stderr, "%s: %s\n", argv[2], strerror(errno));
      return 1;
    }
    fputs(argv[3], out);
    return fclose(out) == 0 ? 0 : 1;
  }
  if (!strcmp(verb, "append")) { /* append PATH TEXT, then print all of it */
    FILE *out = fopen(argv[2], "ab");
    if (out == NULL) return 1;
    fputs(argv[3], out);
    fclose(out);
    return copy(argv[2], stdout);
  }
  if (!strcmp(verb, "list")) return list(argv[2]);
  if (!strcmp(verb, "meddle")) { /* meddle INPUT: every way to change or leave what was given */
    char path[256];
    snprintf(path, sizeof path, "inputs/%s", argv[2]);
    attempt("open for writing", open(path, O_WRONLY) < 0);
    attempt("truncate", open(path, O_WRONLY | O_TRUNC) < 0);
    attempt("unlink", unlink(path) != 0);
    attempt("rename", rename(path, "mine") != 0);
    attempt("link", link(path, "mine") != 0);
    attempt("create", open("inputs/new", O_WRONLY | O_CREAT, 0600) < 0);
    attempt("symlink", symlink("elsewhere", "inputs/soft") != 0);
    attempt("leave", open("../stdout", O_RDONLY) < 0);
    attempt("absolute", open("/etc/passwd", O_RDONLY) < 0);
    symlink("../inputs", "out"); /* may be made, must not be followed */
    snprintf(path, sizeof path, "out/%s", argv[2]);
    attempt("through a symlink", open(path, O_WRONLY) < 0);
    return 0;
  }
  if (!strcmp(verb, "flood")) { /* flood BYTES: how many bytes stdout takes */
    static char block[1000];
    long written = 0;
    memset(block, 'x', sizeof block);
    while (written < number) {
      ssize_t n = write(1, block, sizeof block);
      if (n < 0) {
        fprintf(stderr, "%ld bytes, then %s\n", written, strerror(errno));
        return 4;
      }
      written += n;
    }
    return 0;
  }
  if (!strcmp(verb, "fill")) { /* fill PATH FILES BYTES MILLISECONDS: PATH0, PATH1, …, and then waits */
    static char block[1000];
    long files = strtol(argv[3], NULL, 10), bytes = strtol(argv[4], NULL, 10), pause = strtol(argv[5], NULL, 10);
    struct timespec t = {pause / 1000, pause % 1000 * 1000000};
    for (long i = 0; i < files; i++) {
      char path[256];
      int out;
      snprintf(path, sizeof path, "%s%ld", argv[2], i);
      out = open(path, O_WRONLY | O_CREAT, 0600);
      for (long written = 0; out >= 0 && written < bytes;) {
        ssize_t n = write(out, block, bytes - written < 1000 ? bytes - written : 1000);
        if (n < 0) {
          printf("%ld files and %ld bytes, then %s\n", i, written, strerror(errno));
          return 4;
        }
        written += n;
      }
      if (out < 0 || close(out) != 0) return 1;
    }
    return nanosleep(&t, NULL);
  }
  if (!strcmp(verb, "spin")) { /* spin MILLIONS */
    uint64_t state = 88172645463325252ull;
    for (long i = 0; i < number; i++)
      for (long j = 0; j < 1000000; j++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
      }
    sink = state;
    return 0;
  }
  if (!strcmp(verb, "sleep")) { /* sleep MILLISECONDS */
    struct timespec t = {number / 1000, number % 1000 * 1000000};
    return nanosleep(&t, NULL);
  }
  if (!strcmp(verb, "steps")) { /* steps COUNT MILLISECONDS: goes on where an earlier attempt stopped */
    const char *path = "checkpoint/steps";
    struct stat before = {0};
    struct timespec t = {0, 0};
    long pause = argc > 3 ? strtol(argv[3], NULL, 10) : 0;
    t.tv_sec = pause / 1000, t.tv_nsec = pause % 1000 * 1000000;
    if (stat(path, &before) != 0) before.st_size = 0;
    printf("begun at %ld\n", (long)before.st_size);
    fprintf(stderr, "from %ld on\n", (long)before.st_size);
    for (long i = before.st_size; i < number; i++) {
      FILE *out = fopen(path, "ab");
      if (out == NULL) return 1;
      fputc('x', out);
      fclose(out);
      nanosleep(&t, NULL);
    }
    return 0;
  }
  if (!strcmp(verb, "allocate")) { /* allocate MEBIBYTES */
    for (long i = 0; i < number; i++) {
      char *block = malloc(1 << 20);
      if (block == NULL) {
        printf("refused after %ld MiB\n", i);
        return 5;
      }
      memset(block, 1, 1 << 20);
      sink += (uint64_t)(uintptr_t)block; /* else the compiler leaves the allocation out */
    }
    printf("got %ld MiB\n", number);
    return 0;
  }
  if (!strcmp(verb, "recurse")) {
    sink = recurse(0);
    return 0;
  }
  if (!strcmp(verb, "abort")) abort();
  if (!strcmp(verb, "divide")) {
    sink = (uint64_t)(7 / number);
    return 0;
  }
  if (!strcmp(verb, "wild")) {
    sink = *(volatile uint64_t *)(uintptr_t)0xfffffff0u;
    return 0;
  }
  fprintf(stderr, "probe: unknown verb \"%s\"\n", verb);
  return 2;
}
