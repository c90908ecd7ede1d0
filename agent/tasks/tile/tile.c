/*
 * tile: one task renders one tile of a Mandelbrot picture.
 *
 * usage: tile [--width N] [--height N] [--tile N] [--x D] [--y D] [--scale D]
 *             [--iterations N] [--samples N] [--index N]
 *
 * The picture is --width by --height pixels, cut into squares of --tile pixels, numbered row by row from 0 (squares
 * at the right and lower edge may be smaller). --x and --y are its centre and --scale its width in the complex plane.
 * --index defaults to IDLEWOOD_TASK_INDEX. The tile is written to `tile.rgb` in the working directory: rows from the
 * top, three bytes a pixel. One line on stdout says what was done.
 *
 * Every machine must produce the same bytes, so the arithmetic is + - * / and comparisons on doubles in a fixed order,
 * without libm, without contraction to fused multiply-add, and decimals of at most 15 digits (one exact division).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct picture {
  long width, height, tile, iterations, samples, index;
  double x, y, scale;
};

static const double PALETTE[6][3] = {
    {8.0, 12.0, 38.0},    {24.0, 82.0, 150.0},  {150.0, 214.0, 232.0},
    {252.0, 244.0, 214.0}, {238.0, 148.0, 36.0}, {96.0, 24.0, 42.0},
};

static void refuse(const char *what, const char *value) {
  fprintf(stderr, "tile: %s: %s\n", what, value);
  exit(2);
}

static long whole(const char *name, const char *text, long low, long high) {
  char *end;
  long value = strtol(text, &end, 10);
  if (*text == '\0' || *end != '\0' || value < low || value > high) {
    fprintf(stderr, "tile: %s must be a whole number from %ld to %ld, not \"%s\"\n", name, low, high, text);
    exit(2);
  }
  return value;
}

/* Digits and the power of ten are both exact in a double, so the one division rounds correctly. */
static double decimal(const char *name, const char *text) {
  const char *at = text;
  int negative = *at == '-', digits = 0, seen = 0, places = 0, point = 0;
  uint64_t mantissa = 0;
  double power = 1.0;
  if (negative) at++;
  for (; *at != '\0'; at++) {
    if (*at == '.' && !point) {
      point = 1;
    } else if (*at >= '0' && *at <= '9') {
      seen = 1;
      mantissa = mantissa * 10 + (uint64_t)(*at - '0');
      if (mantissa != 0) digits++;
      if (point) places++;
      if (digits > 15 || places > 22) refuse(name, "at most 15 digits and 22 decimals");
    } else {
      refuse(name, "not a decimal number such as -0.75");
    }
  }
  if (!seen) refuse(name, "not a decimal number such as -0.75");
  for (int i = 0; i < places; i++) power = power * 10.0;
  return negative ? -((double)mantissa / power) : (double)mantissa / power;
}

/* log2 for m >= 1: halve into [1, 2), then five terms of the series of artanh. */
static double log2_of(double m) {
  double whole_part = 0.0;
  while (m >= 2.0) {
    m = m * 0.5;
    whole_part = whole_part + 1.0;
  }
  double s = (m - 1.0) / (m + 1.0);
  double q = s * s;
  double series = q / 9.0 + 1.0 / 7.0;
  series = series * q + 1.0 / 5.0;
  series = series * q + 1.0 / 3.0;
  series = series * q + 1.0;
  return whole_part + (s * series) * 2.8853900817779268;
}

static uint64_t iterations_done = 0;

static void add_sample(const struct picture *p, double cx, double cy, double sum[3]) {
  double x = 0.0, y = 0.0, xx = 0.0, yy = 0.0;
  long n = 0;
  while (n < p->iterations && xx + yy <= 65536.0) {
    y = (x + x) * y + cy;
    x = (xx - yy) + cx;
    xx = x * x;
    yy = y * y;
    n++;
  }
  iterations_done += (uint64_t)n;
  if (xx + yy <= 65536.0) return; /* inside: black */
  double smooth = ((double)n + 1.0) - log2_of(log2_of(xx + yy) / 16.0);
  double place = log2_of(smooth + 1.0) * 1.75;
  long stop = (long)place;
  double f = place - (double)stop;
  f = (f * f) * (3.0 - (f + f));
  const double *from = PALETTE[stop % 6], *to = PALETTE[(stop + 1) % 6];
  for (int c = 0; c < 3; c++) sum[c] = sum[c] + (from[c] + (to[c] - from[c]) * f);
}

int main(int argc, char **argv) {
  struct picture p = {1024, 1024, 64, 3000, 7, -1, -0.7436439, 0.1318259, 0.0006};
  for (int i = 1; i < argc; i += 2) {
    const char *flag = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
    if (!strcmp(flag, "--width")) p.width = whole(flag, value, 1, 32768);
    else if (!strcmp(flag, "--height")) p.height = whole(flag, value, 1, 32768);
    else if (!strcmp(flag, "--tile")) p.tile = whole(flag, value, 1, 4096);
    else if (!strcmp(flag, "--iterations")) p.iterations = whole(flag, value, 1, 1000000);
    else if (!strcmp(flag, "--samples")) p.samples = whole(flag, value, 1, 8);
    else if (!strcmp(flag, "--index")) p.index = whole(flag, value, 0, 1073741823);
    else if (!strcmp(flag, "--x")) p.x = decimal(flag, value);
    else if (!strcmp(flag, "--y")) p.y = decimal(flag, value);
    else if (!strcmp(flag, "--scale")) p.scale = decimal(flag, value);
    else refuse("unknown option (see the head of tile.c)", flag);
  }
  if (p.index < 0) {
    const char *index = getenv("IDLEWOOD_TASK_INDEX");
    if (index == NULL) refuse("which tile? give --index or set", "IDLEWOOD_TASK_INDEX");
    p.index = whole("IDLEWOOD_TASK_INDEX", index, 0, 1073741823);
  }

  long columns = (p.width + p.tile - 1) / p.tile, rows = (p.height + p.tile - 1) / p.tile;
  if (p.index >= columns * rows) {
    fprintf(stderr, "tile: there are %ld tiles, number %ld is not one of them\n", columns * rows, p.index);
    return 2;
  }
  long left = p.index % columns * p.tile, top = p.index / columns * p.tile;
  long width = p.width - left < p.tile ? p.width - left : p.tile;
  long height = p.height - top < p.tile ? p.height - top : p.tile;
  size_t bytes = (size_t)width * (size_t)height * 3;
  unsigned char *rgb = malloc(bytes);
  if (rgb == NULL) refuse("not enough memory", "use a smaller --tile");

  double step = p.scale / (double)p.width;
  double per_pixel = (double)(p.samples * p.samples);
  unsigned char *out = rgb;
  for (long py = top; py < top + height; py++) {
    for (long px = left; px < left + width; px++) {
      double sum[3] = {0.0, 0.0, 0.0};
      for (long sy = 0; sy < p.samples; sy++) {
        double v = ((double)(py * p.samples + sy) + 0.5) / (double)p.samples;
        double cy = p.y + (v - (double)p.height * 0.5) * step;
        for (long sx = 0; sx < p.samples; sx++) {
          double u = ((double)(px * p.samples + sx) + 0.5) / (double)p.samples;
          add_sample(&p, p.x + (u - (double)p.width * 0.5) * step, cy, sum);
        }
      }
      for (int c = 0; c < 3; c++) *out++ = (unsigned char)(sum[c] / per_pixel + 0.5);
    }
  }

  FILE *file = fopen("tile.rgb", "wb");
  if (file == NULL || fwrite(rgb, 1, bytes, file) != bytes || fclose(file) != 0) {
    fprintf(stderr, "tile: cannot write tile.rgb\n");
    return 1;
  }
  printf("tile %ld of %ld: %ldx%ld pixels at (%ld, %ld), %llu iterations\n", p.index, columns * rows, width, height,
         left, top, (unsigned long long)iterations_done);
  return 0;
}
