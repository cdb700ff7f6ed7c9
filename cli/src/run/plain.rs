//! Words of others, made harmless: they come from the network, and go to a terminal that obeys control characters.

/// Characters of a line; what is beyond them is left out.
const LINE_CHARACTERS_MAX: usize = 4096;

/// One word or line: in the place of each control character stands a question mark.
pub(super) fn label(text: &str) -> String {
    line(text, |_| false)
}

/// Lines: their ends and tabulators stay.
pub(super) fn lines(text: &str) -> String {
    let lines: Vec<String> = text.split('\n').map(|text| line(text, |character| character == '\t')).collect();
    lines.join("\n")
}

fn line(text: &str, stays: impl Fn(char) -> bool) -> String {
    let mut characters = text.chars();
    let plain = |character: char| if character.is_control() && !stays(character) { '?' } else { character };
    let mut line: String = characters.by_ref().take(LINE_CHARACTERS_MAX).map(plain).collect();
    let left_out = characters.count();
    if left_out > 0 {
        line += &format!(" ... and {left_out} characters more");
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_is_left() {
        assert_eq!(lines("a\tb\n\x1b[2Jc\r\u{9b}d\u{7f}\n"), "a\tb\n?[2Jc??d?\n");
        assert_eq!(label("a\tb\n\x1b[2Jc ä\u{9b}"), "a?b??[2Jc ä?");
    }

    #[test]
    fn absurdly_long_lines_are_cut() {
        let whole = "ä".repeat(LINE_CHARACTERS_MAX);
        assert_eq!(label(&whole), whole);
        let event = lines(&format!("{whole}xyz\n{whole}\nrest"));
        assert_eq!(event, format!("{whole} ... and 3 characters more\n{whole}\nrest"));
    }
}
