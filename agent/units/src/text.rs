//! Texts from others.

use icu_properties::CodePointMapData;
use icu_properties::props::GeneralCategory;

/// Whether a character could steer a terminal, or make a text look like another: control characters (of which a terminal takes
/// U+0080 to U+009F for escape sequences, too), line and paragraph separators, and the invisible ones that change direction,
/// join, or are nothing at all.
pub fn steers(character: char) -> bool {
    use GeneralCategory::{Control, Format, LineSeparator, ParagraphSeparator};
    if character.is_ascii() {
        return character.is_ascii_control();
    }
    let category = CodePointMapData::<GeneralCategory>::new().get(character);
    matches!(category, Control | Format | LineSeparator | ParagraphSeparator)
}
