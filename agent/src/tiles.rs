//! The demo's picture, which `tasks/tile` computes in pieces on many machines.
//!
//! The counterpart of that program: geometry of the tiles, arguments of the tasks, assembly of the tiles, PNG.
//! [`Picture::render`] computes a tile natively by code of its own, against which results from the grid are checked bit
//! for bit. That works because both use only `+ - * /` and comparisons on doubles, in the order that `tile.c`
//! describes: IEEE 754 determines every bit then.
//!
//! Left out: any other way of drawing, and deep zooms (doubles end at a scale of about 1e-10).

use std::io::Write;

/// A picture of the Mandelbrot set, cut into square tiles. Fields may be set freely; [`Picture::validate`] judges.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Width in pixels, 1 to 32768.
    pub width: u32,
    /// Height in pixels, 1 to 32768.
    pub height: u32,
    /// Side of a tile in pixels, 1 to 4096. Tiles at the right and lower edge may be smaller.
    pub tile: u32,
    /// Real part of the centre; at most 15 digits.
    pub x: f64,
    /// Imaginary part of the centre, growing downwards; at most 15 digits.
    pub y: f64,
    /// Width of the picture in the complex plane; at most 15 digits.
    pub scale: f64,
    /// Most iterations per sample, 1 to 1,000,000. Decides the cost of a tile together with `samples`.
    pub iterations: u32,
    /// Samples per pixel in each direction, 1 to 8.
    pub samples: u32,
}

/// A region worth looking at, and its level of detail.
struct Region {
    x: f64,
    y: f64,
    scale: f64,
    iterations: u32,
    samples: u32,
}

/// Regions with little black. At 1024 by 1024 pixels each takes 2.5 to 4 times 10^9 iterations: some 8 seconds of one
/// core, 30 ms a tile of 64 by 64 in the mean.
const REGIONS: [Region; 5] = [
    // Galaxies at the end of a seahorse's tail.
    Region { x: -0.7436439, y: 0.1318259, scale: 0.0006, iterations: 3000, samples: 5 },
    // A double spiral.
    Region { x: -0.761574, y: -0.0847596, scale: 0.0012, iterations: 3000, samples: 4 },
    // Seahorses.
    Region { x: -0.7453, y: 0.1127, scale: 0.0065, iterations: 2000, samples: 4 },
    // Sun wheels.
    Region { x: 0.32450464185, y: 0.048551011293, scale: 0.002, iterations: 3000, samples: 4 },
    // Elephants.
    Region { x: 0.2925755, y: -0.0149977, scale: 0.008, iterations: 2000, samples: 3 },
];

/// A tile's area in its picture, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Area {
    /// First column.
    pub left: u32,
    /// First row, from the top.
    pub top: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// Why a picture cannot be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PictureError {
    /// A number out of its range.
    #[error("{field} must be from 1 to {max}, not {value}")]
    Range {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u32,
        /// The largest that is allowed.
        max: u32,
    },
    /// A number that the task would not read back exactly.
    #[error("{field} must be a decimal number of at most 15 digits and 22 decimals, not {value}")]
    Digits {
        /// The field.
        field: &'static str,
        /// Its value.
        value: f64,
    },
}

/// Why a tile was refused. The canvas is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TileError {
    /// There is no such tile.
    #[error("there is no tile {index}: the picture has {tiles}")]
    NoTile {
        /// The tile.
        index: u32,
        /// How many there are.
        tiles: u32,
    },
    /// The bytes are too few or too many.
    #[error("tile {index} must have {expected} bytes, three per pixel, not {found}")]
    Size {
        /// The tile.
        index: u32,
        /// The bytes of its area.
        expected: usize,
        /// The bytes given.
        found: usize,
    },
}

impl Picture {
    /// A picture of 1024 by 1024 pixels in 256 tiles, its region chosen by `seed`.
    pub fn demo(seed: u64) -> Self {
        let Region { x, y, scale, iterations, samples } = REGIONS[(seed % REGIONS.len() as u64) as usize];
        Picture { width: 1024, height: 1024, tile: 64, x, y, scale, iterations, samples }
    }

    /// Refuses pictures that the task program would refuse, too.
    ///
    /// # Errors
    /// [`PictureError`], naming the first offender.
    pub fn validate(&self) -> Result<(), PictureError> {
        for (field, value, max) in [
            ("width", self.width, 32_768),
            ("height", self.height, 32_768),
            ("tile", self.tile, 4096),
            ("iterations", self.iterations, 1_000_000),
            ("samples", self.samples, 8),
        ] {
            if value == 0 || value > max {
                return Err(PictureError::Range { field, value, max });
            }
        }
        for (field, value) in [("x", self.x), ("y", self.y), ("scale", self.scale)] {
            let text = value.to_string();
            let digits = text.trim_start_matches(['-', '0', '.']).bytes().filter(u8::is_ascii_digit).count();
            let decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
            if !value.is_finite() || digits > 15 || decimals > 22 {
                return Err(PictureError::Digits { field, value });
            }
        }
        Ok(())
    }

    /// The task program's arguments for this picture. The tile is given by `IDLEWOOD_TASK_INDEX`, or by `--index N`
    /// added to these.
    pub fn args(&self) -> Vec<String> {
        let flags = [
            ("--width", self.width.to_string()),
            ("--height", self.height.to_string()),
            ("--tile", self.tile.to_string()),
            // Without an exponent, and the shortest text that reads back as the same number.
            ("--x", self.x.to_string()),
            ("--y", self.y.to_string()),
            ("--scale", self.scale.to_string()),
            ("--iterations", self.iterations.to_string()),
            ("--samples", self.samples.to_string()),
        ];
        flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
    }

    /// Tiles in a row.
    pub fn columns(&self) -> u32 {
        self.width.div_ceil(self.tile.max(1))
    }

    /// Rows of tiles.
    pub fn rows(&self) -> u32 {
        self.height.div_ceil(self.tile.max(1))
    }

    /// Number of tiles. They are numbered row by row from the upper left.
    pub fn tiles(&self) -> u32 {
        self.columns() * self.rows()
    }

    /// The area of tile `index`; `None` if there is no such tile.
    pub fn area(&self, index: u32) -> Option<Area> {
        if index >= self.tiles() {
            return None;
        }
        let left = index % self.columns() * self.tile;
        let top = index / self.columns() * self.tile;
        let (width, height) = ((self.width - left).min(self.tile), (self.height - top).min(self.tile));
        Some(Area { left, top, width, height })
    }

    /// Computes a tile here: RGB bytes, row by row. `None` if there is no such tile.
    pub fn render(&self, index: u32) -> Option<Vec<u8>> {
        let Area { left, top, width, height } = self.area(index)?;
        let pixels = (top..top + height).flat_map(|row| (left..left + width).map(move |column| (column, row)));
        Some(pixels.flat_map(|(column, row)| self.pixel(column, row)).collect())
    }

    fn pixel(&self, column: u32, row: u32) -> [u8; 3] {
        let step = self.scale / f64::from(self.width);
        let on_axis = |pixel: u32, sample: u32, size: u32, centre: f64| {
            let place = (f64::from(pixel * self.samples + sample) + 0.5) / f64::from(self.samples);
            centre + (place - f64::from(size) * 0.5) * step
        };
        let mut sum = Rgb([0.0; 3]);
        for sample in 0..self.samples * self.samples {
            let im = on_axis(row, sample / self.samples, self.height, self.y);
            let re = on_axis(column, sample % self.samples, self.width, self.x);
            if let Some(smooth) = self.escape(re, im) {
                let Rgb(colour) = colour(smooth);
                sum.0.iter_mut().zip(colour).for_each(|(sum, colour)| *sum += colour);
            }
        }
        sum.0.map(|channel| (channel / f64::from(self.samples * self.samples) + 0.5) as u8)
    }

    /// How fast the point escapes, as a smooth number of iterations; `None` for the inside.
    fn escape(&self, c_re: f64, c_im: f64) -> Option<f64> {
        let (mut re, mut im) = (0.0, 0.0);
        for done in 1..=self.iterations {
            (re, im) = (re * re - im * im + c_re, 2.0 * re * im + c_im);
            let square = re * re + im * im;
            if square > 65536.0 {
                return Some(f64::from(done) + 1.0 - log2(log2(square) / 16.0));
            }
        }
        None
    }
}

#[derive(Clone, Copy)]
struct Rgb([f64; 3]);

const NIGHT: Rgb = Rgb([8.0, 12.0, 38.0]);
const SEA: Rgb = Rgb([24.0, 82.0, 150.0]);
const ICE: Rgb = Rgb([150.0, 214.0, 232.0]);
const CREAM: Rgb = Rgb([252.0, 244.0, 214.0]);
const AMBER: Rgb = Rgb([238.0, 148.0, 36.0]);
const WINE: Rgb = Rgb([96.0, 24.0, 42.0]);

/// The colour of a smooth number of iterations: a ring of six, passed ever more slowly.
fn colour(smooth: f64) -> Rgb {
    let ring = [NIGHT, SEA, ICE, CREAM, AMBER, WINE];
    let place = log2(smooth + 1.0) * 1.75;
    let stop = place.trunc();
    let part = place - stop;
    let eased = part * part * (3.0 - 2.0 * part);
    let (Rgb(from), Rgb(to)) = (ring[stop as usize % 6], ring[(stop as usize + 1) % 6]);
    Rgb([0, 1, 2].map(|channel| from[channel] + (to[channel] - from[channel]) * eased))
}

/// Binary logarithm of `m` ≥ 1 to about six digits: the platform's own differs between platforms.
fn log2(mut m: f64) -> f64 {
    let mut exponent = 0.0;
    while m >= 2.0 {
        m /= 2.0;
        exponent += 1.0;
    }
    // ln m = 2 artanh s = 2 (s + s³/3 + s⁵/5 + ...), here with the terms up to s⁹; 2 / ln 2 = 2.885...
    let s = (m - 1.0) / (m + 1.0);
    let square = s * s;
    let series = [1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0]
        .into_iter()
        .enumerate()
        .fold(0.0, |series, (term, odd)| if term == 0 { square / 9.0 + odd } else { series * square + odd });
    exponent + s * series * 2.885_390_081_777_926_8
}

/// A picture that is being assembled from its tiles.
#[derive(Debug, Clone)]
pub struct Canvas {
    picture: Picture,
    rgb: Vec<u8>,
    there: Vec<bool>,
}

impl Canvas {
    /// An empty (black) canvas.
    ///
    /// # Errors
    /// [`PictureError`]: the picture is not valid.
    pub fn new(picture: Picture) -> Result<Self, PictureError> {
        picture.validate()?;
        let rgb = vec![0; picture.width as usize * picture.height as usize * 3];
        let there = vec![false; picture.tiles() as usize];
        Ok(Canvas { picture, rgb, there })
    }

    /// Puts a tile in its place, replacing it if it was placed before.
    ///
    /// # Errors
    /// [`TileError`]; the canvas is unchanged.
    pub fn place(&mut self, index: u32, tile: &[u8]) -> Result<(), TileError> {
        let tiles = self.picture.tiles();
        let Area { left, top, width, height } = self.picture.area(index).ok_or(TileError::NoTile { index, tiles })?;
        let row_bytes = width as usize * 3;
        let expected = row_bytes * height as usize;
        if tile.len() != expected {
            return Err(TileError::Size { index, expected, found: tile.len() });
        }
        for (row, bytes) in (top as usize..).zip(tile.chunks_exact(row_bytes)) {
            let begin = (row * self.picture.width as usize + left as usize) * 3;
            self.rgb[begin..begin + row_bytes].copy_from_slice(bytes);
        }
        self.there[index as usize] = true;
        Ok(())
    }

    /// The tiles that are still missing.
    pub fn missing(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.there).filter(|(_, there)| !**there).map(|(index, _)| index)
    }

    /// The picture so far: RGB bytes, row by row, missing tiles black.
    pub fn rgb(&self) -> &[u8] {
        &self.rgb
    }

    /// Writes the picture so far as PNG.
    ///
    /// # Errors
    /// Writing to `to` failed.
    pub fn write_png(&self, to: impl Write) -> Result<(), png::EncodingError> {
        let mut encoder = png::Encoder::new(to, self.picture.width, self.picture.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Picture {
        Picture { width: 100, height: 70, tile: 32, samples: 2, iterations: 300, ..Picture::demo(0) }
    }

    #[test]
    fn tiles_cover_every_pixel_once() {
        for (width, height, tile) in [(100, 70, 32), (64, 64, 64), (1, 1, 4096), (65, 1, 64), (10, 10, 1)] {
            let picture = Picture { width, height, tile, ..small() };
            let mut count = vec![0; (width * height) as usize];
            for index in 0..picture.tiles() {
                let Area { left, top, width: columns, height: rows } = picture.area(index).unwrap();
                for (x, y) in (top..top + rows).flat_map(|y| (left..left + columns).map(move |x| (x, y))) {
                    count[(y * width + x) as usize] += 1;
                }
            }
            assert!(count.iter().all(|count| *count == 1), "{width} {height} {tile}");
            assert_eq!(picture.area(picture.tiles()), None);
        }
    }

    #[test]
    fn the_logarithm_is_close_enough() {
        for step in 0..4000 {
            let m = 1.0 + f64::from(step) * f64::from(step) / 100.0;
            assert!((log2(m) - m.log2()).abs() < 5e-6, "{m}");
        }
    }

    #[test]
    fn the_arguments_read_back_exactly() {
        for seed in 0..REGIONS.len() as u64 {
            let picture = Picture::demo(seed);
            assert_eq!(picture.validate(), Ok(()));
            let args = picture.args();
            let value = |flag: &str| args[args.iter().position(|arg| arg == flag).unwrap() + 1].parse::<f64>().unwrap();
            assert_eq!((value("--x"), value("--y"), value("--scale")), (picture.x, picture.y, picture.scale));
            assert!(args.iter().all(|arg| !arg.contains('e') || arg.starts_with("--")));
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for picture in [
            Picture { width: 0, ..small() },
            Picture { height: 32_769, ..small() },
            Picture { tile: 0, ..small() },
            Picture { samples: 9, ..small() },
            Picture { iterations: 0, ..small() },
            Picture { x: f64::NAN, ..small() },
            Picture { y: f64::INFINITY, ..small() },
            Picture { scale: 0.1 + 0.2, ..small() },
            Picture { scale: 1e-23, ..small() },
        ] {
            assert!(picture.validate().is_err(), "{picture:?}");
            assert!(Canvas::new(picture).is_err());
        }
        assert_eq!(Picture { scale: 1e-10, x: -0.123456789012345, ..small() }.validate(), Ok(()));
    }

    #[test]
    fn a_canvas_takes_tiles_in_any_order_and_makes_a_png() {
        let picture = small();
        let mut canvas = Canvas::new(picture.clone()).unwrap();
        assert_eq!(canvas.missing().count(), picture.tiles() as usize);
        for index in (0..picture.tiles()).rev() {
            canvas.place(index, &picture.render(index).unwrap()).unwrap();
        }
        assert_eq!(canvas.missing().next(), None);
        // In one piece the picture is the same.
        let whole = Picture { tile: 4096, ..picture.clone() };
        assert_eq!(canvas.rgb(), whole.render(0).unwrap());
        assert!(canvas.rgb().iter().any(|byte| *byte > 100));

        let mut png = Vec::new();
        canvas.write_png(&mut png).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
        let mut rgb = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut rgb).unwrap();
        assert_eq!((info.width, info.height, info.color_type), (100, 70, png::ColorType::Rgb));
        assert_eq!(rgb, canvas.rgb());
    }

    #[test]
    fn a_wrong_tile_is_not_placed() {
        let picture = small();
        let mut canvas = Canvas::new(picture.clone()).unwrap();
        assert_eq!(canvas.place(12, &[]), Err(TileError::NoTile { index: 12, tiles: 12 }));
        let too_short = canvas.place(0, &[9; 32 * 32 * 3 - 1]);
        assert!(matches!(too_short, Err(TileError::Size { index: 0, expected: 3072, found: 3071 })), "{too_short:?}");
        assert!(canvas.rgb().iter().all(|byte| *byte == 0));
        assert_eq!(canvas.missing().count(), 12);
    }
}
