//! Blocks of code in documents, fenced or indented.

use crate::tidy::text_files;

/// A block of code.
#[derive(Debug)]
pub(crate) struct Block {
    /// The document, by its path in the repository.
    pub(super) document: String,
    /// The number of its first line of code.
    pub(super) line: usize,
    /// What the fence says; empty for indented blocks.
    pub(super) language: String,
    /// Its lines, without what indents all of them.
    pub(crate) text: String,
}

impl Block {
    pub(super) fn first_line(&self) -> &str {
        self.text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim_start()
    }

    pub(super) fn begins_with(&self, text: &str) -> bool {
        self.text.trim_start().starts_with(text)
    }
}

/// Every block of every document. The changelog has none.
pub(super) fn blocks() -> Vec<Block> {
    let documents = text_files().filter(|(path, _)| path.ends_with(".md") && path != "CHANGELOG.md");
    documents.flat_map(|(document, text)| blocks_of(&document, &text)).collect()
}

/// The block of a document whose first line begins with this text.
#[track_caller]
pub(crate) fn block(document: &str, begins: &str) -> Block {
    let mut found: Vec<Block> = blocks()
        .into_iter()
        .filter(|block| block.document == document && block.begins_with(begins))
        .collect();
    assert_eq!(found.len(), 1, "{document}: blocks that begin with {begins:?}");
    found.remove(0)
}

const INDENT: usize = 4;

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn blocks_of(document: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = text.lines().zip(1..).peekable();
    let mut is_after_blank = true;
    while let Some((line, number)) = lines.next() {
        let block = |line, language: &str, text: Vec<&str>| Block {
            document: document.into(),
            line,
            language: language.into(),
            text: text.iter().map(|line| format!("{line}\n")).collect(),
        };
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let indent = indent_of(line);
            let mut inside = Vec::new();
            for (line, _) in lines.by_ref().take_while(|(line, _)| line.trim() != "```") {
                inside.push(line.get(indent.min(indent_of(line))..).unwrap_or_default());
            }
            blocks.push(block(number + 1, language, inside));
        } else if is_after_blank && indent_of(line) >= INDENT && !line.trim().is_empty() {
            let mut inside = vec![&line[INDENT..]];
            while let Some((line, _)) = lines.next_if(|(line, _)| indent_of(line) >= INDENT) {
                inside.push(&line[INDENT..]);
            }
            blocks.push(block(number, "", inside));
        }
        is_after_blank = line.trim().is_empty();
    }
    blocks
}

#[test]
fn fenced_and_indented_blocks_are_found() {
    let text = "a\n\n    x\n      y\n\nb\n    no\n```cpp\n  p\n```\n- c\n\n  ```\n  q\n  ```\n";
    let found = blocks_of("d", text);
    let found: Vec<_> = found.iter().map(|block| (block.line, &*block.language, &*block.text)).collect();
    assert_eq!(found, [(3, "", "x\n  y\n"), (9, "cpp", "  p\n"), (14, "", "q\n")]);
}
