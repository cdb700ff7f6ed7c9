//! Words of others, made harmless: they come from the network, and go to a terminal that obeys control characters.

/// Characters of a line; what is beyond them is left out.
const LINE_CHARACTERS_MAX: usize = 4096;

/// One word or line: in the place of each control character stands a question mark.
pub(super) fn word(words: &str) -> String {
    line(words, |_| false)
}

/// Lines: their ends and tabulators stay.
pub(super) fn lines(words: &str) -> String {
    let lines: Vec<String> = words.split('\n').map(|words| line(words, |letter| letter == '\t')).collect();
    lines.join("\n")
}

fn line(words: &str, stays: impl Fn(char) -> bool) -> String {
    let mut letters = words.chars();
    let plain = |letter: char| if letter.is_control() && !stays(letter) { '?' } else { letter };
    let mut line: String = letters.by_ref().take(LINE_CHARACTERS_MAX).map(plain).collect();
    let left_out = letters.count();
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
        assert_eq!(word("a\tb\n\x1b[2Jc ä\u{9b}"), "a?b??[2Jc ä?");
    }

    #[test]
    fn absurdly_long_lines_are_cut() {
        let whole = "ä".repeat(LINE_CHARACTERS_MAX);
        assert_eq!(word(&whole), whole);
        let told = lines(&format!("{whole}xyz\n{whole}\nrest"));
        assert_eq!(told, format!("{whole} ... and 3 characters more\n{whole}\nrest"));
    }
}
