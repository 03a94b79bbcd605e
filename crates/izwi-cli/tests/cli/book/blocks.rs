//! The code blocks of a page, and the commands of its shell blocks.
//!
//! A block that cannot run on every machine has a line `<!-- no-run: REASON -->` before it; [`REASONS`] has those that count.

/// Why a block is not run.
const REASONS: [&str; 5] = [
    "changes the services of the user",
    "needs a model of your own",
    "needs a release",
    "needs another program",
    "runs for minutes",
];

/// What runs a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Shell,
    Python,
    JavaScript,
}

/// A code block of a language that is run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Block {
    /// The line of its first line of code, from 1.
    pub(super) line: usize,
    pub(super) language: Language,
    pub(super) text: String,
    pub(super) runs: bool,
}

/// The code blocks of a page that are in a language of [`Language`].
pub(super) fn blocks(page: &str) -> Result<Vec<Block>, String> {
    let mut found = Vec::new();
    let mut mark = None;
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            let comment = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
            if mark.is_some() {
                return Err(format!("line {at}: a mark without a code block after it"));
            }
            mark = comment.and_then(|comment| comment.strip_prefix("no-run"));
            continue;
        };
        let runs = is_run(mark.take()).map_err(|fault| format!("line {at}: {fault}"))?;
        let code: Vec<&str> =
            lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```").collect();
        let language = match info.split([' ', ',']).next() {
            Some("sh") => Language::Shell,
            Some("python") => Language::Python,
            Some("js") => Language::JavaScript,
            Some("bash" | "console" | "shell" | "javascript" | "py") => {
                return Err(format!("line {}: '{info}' is not run: write sh, python or js", at + 1));
            }
            _ if !runs => return Err(format!("line {at}: a mark before a block that is never run")),
            _ => continue,
        };
        if code.iter().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Err(format!("line {}: a block without a command", at + 1));
        }
        found.push(Block { line: at + 2, language, text: code.join("\n") + "\n", runs });
    }
    Ok(found)
}

/// The commands of `izwi` that stand between backticks in a page, outside of its code blocks.
pub(super) fn within_text(page: &str) -> Vec<String> {
    let mut in_code = false;
    let lines = page.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    });
    let text = lines.collect::<Vec<_>>().join("\n");
    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.replace('\n', " "));
    let is_command = |span: &&str| span.starts_with("izwi ");
    let commands = |paragraph: String| -> Vec<String> {
        paragraph.split('`').skip(1).step_by(2).filter(is_command).map(str::to_owned).collect()
    };
    paragraphs.flat_map(commands).collect()
}

/// Whether a block with this mark is run.
fn is_run(mark: Option<&str>) -> Result<bool, String> {
    let Some(mark) = mark else {
        return Ok(true);
    };
    match mark.strip_prefix(": ") {
        Some(reason) if REASONS.contains(&reason) => Ok(false),
        _ => Err(format!("'no-run{mark}' has none of the reasons {REASONS:?}")),
    }
}

/// A word of a command, or what separates commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word {
    Text(String),
    Operator(String),
}

/// A command of a shell block: its first line, its text as it stands, and its words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) line: usize,
    pub(super) text: String,
    pub(super) words: Vec<Word>,
}

impl Command {
    /// The programs that it starts, each with its arguments; not those inside of quotes.
    pub(super) fn calls(&self) -> Vec<Vec<&str>> {
        let mut calls = vec![Vec::new()];
        for word in &self.words {
            match (word, calls.last_mut()) {
                (Word::Text(text), Some(call)) => call.push(text.as_str()),
                _ => calls.push(Vec::new()),
            }
        }
        for call in &mut calls {
            let assigned = call.iter().take_while(|word| is_assignment(word)).count();
            call.drain(..assigned);
        }
        calls.retain(|call| !call.is_empty());
        calls
    }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(name, _)| !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
}

/// The commands of a shell block, each over as many lines as it takes.
pub(super) fn commands(block: &Block) -> Result<Vec<Command>, String> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (at, line) in block.text.lines().enumerate() {
        let (first, mut text) = open.take().unwrap_or((block.line + at, String::new()));
        text.push_str(line);
        text.push('\n');
        match words(&text) {
            Some(words) if words.is_empty() => {}
            Some(words) if !goes_on(&words) => found.push(Command { line: first, text, words }),
            _ => open = Some((first, text)),
        }
    }
    match open {
        Some((line, _)) => Err(format!("line {line}: the command does not end in its block")),
        None => Ok(found),
    }
}

/// Whether a command needs another line.
fn goes_on(words: &[Word]) -> bool {
    matches!(words.last(), Some(Word::Operator(operator)) if operator != ";" && operator != "&")
}

/// The words of a text, without comments; none if a quote is open or the last line is continued.
fn words(text: &str) -> Option<Vec<Word>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next()? {
                '\n' => {
                    characters.peek()?;
                }
                escaped => word.get_or_insert_default().push(escaped),
            },
            '\'' | '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        end if end == c => break,
                        '\\' if c == '"' => word.push(characters.next()?),
                        inside => word.push(inside),
                    }
                }
            }
            '#' if word.is_none() => while characters.next_if(|c| *c != '\n').is_some() {},
            '|' | '&' | ';' => {
                words.extend(word.take().map(Word::Text));
                let mut operator = String::from(c);
                operator.extend(characters.next_if_eq(&c));
                words.push(Word::Operator(operator));
            }
            // What follows is a file.
            '>' | '<' => {
                words.extend(word.take().filter(|word| word != "2").map(Word::Text));
                while characters.next_if(|c| matches!(c, '>' | '&' | ' ')).is_some() {}
                while characters.next_if(|c| !c.is_whitespace()).is_some() {}
            }
            c if c.is_whitespace() => words.extend(word.take().map(Word::Text)),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word.map(Word::Text));
    Some(words)
}

#[test]
fn blocks_and_marks_are_read() {
    let page = "a\n```sh\nls\n```\n<!-- no-run: needs a release -->\n```sh\nsh x\n```\n```json\n{}\n```\n```python\nx\n```\n";
    let found = blocks(page).unwrap();
    let found: Vec<_> = found.iter().map(|block| (block.line, block.language, block.runs)).collect();
    assert_eq!(
        found,
        [(3, Language::Shell, true), (7, Language::Shell, false), (13, Language::Python, true)]
    );
    for (fault, part) in [
        ("```sh\n# nothing\n```\n", "without a command"),
        ("<!-- no-run -->\n```sh\nls\n```\n", "has none of the reasons"),
        ("<!-- no-run: tired -->\n```sh\nls\n```\n", "has none of the reasons"),
        ("<!-- no-run: needs a release -->\n\n```sh\nls\n```\n", "without a code block"),
        ("<!-- no-run: needs a release -->\n```json\n{}\n```\n", "never run"),
        ("```console\n$ ls\n```\n", "write sh"),
    ] {
        let refused = blocks(fault).unwrap_err();
        assert!(refused.contains(part), "{fault}: {refused}");
    }
}

#[test]
fn commands_are_found_between_backticks() {
    let page = "`izwi a` and `x`\n```sh\n`izwi b`\n```\nso `izwi\nc`\n\nodd `\n\n`izwi d` `izwi`\n";
    assert_eq!(within_text(page), ["izwi a", "izwi c", "izwi d"]);
}

#[test]
fn commands_are_read_as_the_shell_reads_them() {
    let block = |text: &str| Block { line: 1, language: Language::Shell, text: text.to_owned(), runs: true };
    let read = commands(&block(
        "A=1 izwi say \"a  b\" -o x.wav   # why\n\ncat a | izwi say - \\\n  --play && izwi list > y 2>&1\n",
    ))
    .unwrap();
    let calls: Vec<_> = read.iter().map(|command| (command.line, command.calls())).collect();
    assert_eq!(
        calls,
        [
            (1, vec![vec!["izwi", "say", "a  b", "-o", "x.wav"]]),
            (3, vec![vec!["cat", "a"], vec!["izwi", "say", "-", "--play"], vec!["izwi", "list"]]),
        ]
    );
    assert!(commands(&block("echo 'open\n")).is_err());
    assert!(commands(&block("ls |\n")).is_err());
}
