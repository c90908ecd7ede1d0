//! Tables, and lists of names and values, that fit the terminal they are for.
//!
//! What does not fit is dealt with in this order: columns that can be spared are left out, the first of them those that are spared most
//! easily, and a line below says which; the last column, if it is text, goes on in further lines; texts of others are cut, the longest first.
//! Nothing of that happens on a pipe.

use std::borrow::Cow;
use std::io::{self, Write};

use textwrap::core::display_width;

use super::width::{columns, longest_word, paragraph_within, room, wrapped};
use super::{Colour, printable};

/// Between two columns.
const GAP: usize = 2;
/// Texts are not cut to fewer columns.
const CUT_LEAST: usize = 8;

/// One column of a [`Table`].
#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    right: bool,
    spare: u8,
}

impl Column {
    /// A column for text.
    pub const fn left(title: &'static str) -> Self {
        Self { title, right: false, spare: 0 }
    }

    /// A column for numbers.
    pub const fn right(title: &'static str) -> Self {
        Self { title, right: true, spare: 0 }
    }

    /// The same, which a narrow terminal leaves out: the higher `order`, the sooner.
    pub const fn spared(self, order: u8) -> Self {
        Self { spare: order, ..self }
    }
}

/// Rows under titles, aligned.
#[derive(Debug)]
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<(String, Option<Colour>)>>,
}

impl Table {
    /// An empty table.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, one cell per column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|cell| (printable(&cell), None)).collect());
    }

    /// Colours a cell of the last row.
    pub fn colour(&mut self, column: usize, colour: Colour) {
        if let Some(cell) = self.rows.last_mut().and_then(|row| row.get_mut(column)) {
            cell.1 = Some(colour);
        }
    }

    /// Writes titles and rows.
    ///
    /// # Errors
    /// When `out` refuses.
    pub fn write(&self, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        self.write_within(out, columns())
    }

    fn write_within(&self, out: &mut (impl Write + ?Sized), columns: Option<usize>) -> io::Result<()> {
        let (shown, widths) = self.fitted(columns);
        let titles: Vec<_> = self.columns.iter().map(|column| (column.title.to_uppercase(), None)).collect();
        for row in std::iter::once(&titles).chain(&self.rows) {
            let (mut line, mut rest) = (String::new(), Vec::new());
            for (&column, &width) in shown.iter().zip(&widths) {
                let Some((cell, colour)) = row.get(column) else { continue };
                let is_last = Some(&column) == shown.last() && !self.columns[column].right;
                let mut lines = if is_last { wrapped(cell, width) } else { vec![cut(cell, width)] };
                rest = lines.split_off(1);
                let first = &lines[0];
                let gap = " ".repeat(width.saturating_sub(display_width(first)));
                let cell = colour.map_or_else(|| first.to_string(), |colour: Colour| colour.paint(first));
                line += &if self.columns[column].right { format!("{gap}{cell}  ") } else { format!("{cell}{gap}  ") };
            }
            writeln!(out, "{}", line.trim_end())?;
            let before = widths.iter().rev().skip(1).map(|width| width + GAP).sum();
            for line in rest {
                writeln!(out, "{}{line}", " ".repeat(before))?;
            }
        }
        let spared = (0..self.columns.len()).filter(|column| !shown.contains(column));
        let spared: Vec<&str> = spared.map(|column| self.columns[column].title).collect();
        if spared.is_empty() {
            return Ok(());
        }
        let why = format!(
            "{}, for which there is no room: a wider terminal shows them, and so does a pipe",
            spared.join(", ")
        );
        paragraph_within(out, "without ", &why, columns)
    }

    /// Which columns are shown, and how wide each.
    fn fitted(&self, columns: Option<usize>) -> (Vec<usize>, Vec<usize>) {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column)).map(|(cell, _)| display_width(cell));
            cells.fold(self.columns[column].title.len(), usize::max)
        };
        let mut shown: Vec<(usize, usize)> = (0..self.columns.len()).map(|column| (column, width(column))).collect();
        let total =
            |shown: &[(usize, usize)]| shown.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP);
        let most = columns.unwrap_or(usize::MAX);
        while total(&shown) > most
            && let Some(spared) = (0..shown.len()).max_by_key(|&at| self.columns[shown[at].0].spare)
            && self.columns[shown[spared].0].spare > 0
        {
            shown.remove(spared);
        }
        if let Some((last, rest)) = shown.split_last_mut().filter(|(last, _)| !self.columns[last.0].right) {
            let before = rest.iter().map(|(_, width)| width + GAP).sum();
            let cells = self.rows.iter().filter_map(|row| row.get(last.0)).map(|(cell, _)| longest_word(cell));
            let whole = cells.fold(self.columns[last.0].title.len(), usize::max);
            last.1 = last.1.min(room(columns, before).max(whole));
        }
        while total(&shown) > most {
            let over = total(&shown) - most;
            let is_text = |at: &usize| !self.columns[shown[*at].0].right && shown[*at].1 > CUT_LEAST;
            let others = shown.len().saturating_sub(1);
            let Some(widest) = (0..others).filter(is_text).max_by_key(|&at| shown[at].1) else { break };
            shown[widest].1 = shown[widest].1.saturating_sub(over).max(CUT_LEAST);
        }
        shown.into_iter().unzip()
    }
}

/// A text of at most so many columns.
fn cut(text: &str, most: usize) -> Cow<'_, str> {
    if display_width(text) <= most {
        return text.into();
    }
    let mut cut = String::new();
    for character in text.chars() {
        cut.push(character);
        if display_width(&cut) >= most {
            cut.pop();
            break;
        }
    }
    cut.push('…');
    cut.into()
}

/// Writes names and values, one pair per line, the values aligned.
///
/// # Errors
/// When `out` refuses.
pub fn pairs(out: &mut (impl Write + ?Sized), pairs: &[(&str, String)]) -> io::Result<()> {
    pairs_within(out, pairs, columns())
}

fn pairs_within(out: &mut (impl Write + ?Sized), pairs: &[(&str, String)], columns: Option<usize>) -> io::Result<()> {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in pairs {
        paragraph_within(out, &format!("{name:width$}  "), value, columns)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn tables_line_up_and_hold_no_control_characters() {
        let mut table = Table::new(&[Column::left("id"), Column::right("tasks"), Column::left("name")]);
        table.row(["ab".to_owned(), "7".to_owned(), "é\x1b[2J".to_owned()]);
        table.row(["abc".to_owned(), "123456".to_owned(), String::new()]);
        assert_eq!(text(|out| table.write(out)), "ID    TASKS  NAME\nab        7  é [2J\nabc  123456\n");
    }

    fn wide() -> Table {
        let columns = [
            Column::left("name"),
            Column::right("tasks"),
            Column::right("placed").spared(1),
            Column::right("speed").spared(2),
            Column::left("why"),
        ];
        let mut table = Table::new(&columns);
        let why = "its owner is there, and has been for an hour";
        table.row(["a machine with a long name", "7", "3", "1000", why].map(str::to_owned));
        table
    }

    #[test]
    fn a_table_fits_its_terminal() {
        let whole = text(|out| wide().write_within(out, None));
        assert_eq!(text(|out| wide().write_within(out, Some(200))), whole);
        assert_eq!(whole.lines().count(), 2);
        assert_eq!(
            text(|out| wide().write_within(out, Some(70))),
            "NAME                        TASKS  WHY\n\
             a machine with a long name      7  its owner is there, and has been\n                                   for an hour\n\
             without placed, speed, for which there is no room: a wider terminal\n        shows them, and so does a pipe\n"
        );
        let narrow = text(|out| wide().write_within(out, Some(44)));
        assert!(narrow.contains("\na machine with…      7  its owner is there,\n"), "{narrow}");
        for columns in [40, 44, 60, 70, 80, 100] {
            let text = text(|out| wide().write_within(out, Some(columns)));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{columns}:\n{text}");
        }
    }

    #[test]
    fn what_is_cut_fits_however_wide_its_characters_are() {
        assert_eq!(
            ["abcdefghi", "研究室研究室", "研究室"].map(|text| cut(text, 8).into_owned()),
            ["abcdefg…", "研究室…", "研究室"]
        );
        assert_eq!(cut("研究室研究室", 9), "研究室研…");
    }

    #[test]
    fn values_go_on_below_themselves() {
        let all = [("now", "one two three four five six".to_owned()), ("state", String::new())];
        let told = text(|out| pairs_within(out, &all, Some(27)));
        assert_eq!(told, "now    one two three four\n       five six\nstate\n");
        assert_eq!(text(|out| pairs_within(out, &all, None)).lines().count(), 2);
    }
}
