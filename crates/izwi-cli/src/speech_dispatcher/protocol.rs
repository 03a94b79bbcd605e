//! The protocol between Speech Dispatcher and its modules: lines that it sends, replies, and events with audio.
//!
//! Knows no text and no voice. Described in the chapter "Output Modules" of the Speech Dispatcher manual.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncWriteExt as _, Stdout};
use tokio::sync::Mutex;

/// A longer line, or message of several lines, is refused and not kept.
pub(super) const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// The most audio of one event: a stop waits for the rest of it.
pub(super) const MAX_EVENT_SAMPLES: usize = 2_048;

pub(super) const UNKNOWN_COMMAND: &str = "300 ERR UNKNOWN COMMAND";
pub(super) const CANT_SPEAK: &str = "301 ERROR CANT SPEAK";
pub(super) const BAD_SYNTAX: &str = "302 ERROR BAD SYNTAX";
pub(super) const BAD_PARAMETER: &str = "303 ERROR INVALID PARAMETER OR VALUE";
pub(super) const NO_VOICES: &str = "304 CANT LIST VOICES";
pub(super) const SEVERAL_LINES: &str = "305 DATA MORE THAN ONE LINE";

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    SoundIcon,
    Char,
    Key,
}

/// What Speech Dispatcher asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Init,
    /// A message follows.
    Speak(Kind),
    Stop,
    Pause,
    ListVoices {
        language: Option<String>,
        variant: Option<String>,
    },
    /// Parameters follow, as after `Audio` and `LogLevel`.
    Set,
    Audio,
    LogLevel,
    /// A file to log to, or none.
    Debug(Option<String>),
    Quit,
}

impl Command {
    /// Reads a line.
    ///
    /// # Errors
    /// The reply that tells what is wrong.
    pub(super) fn parse(line: &str) -> Result<Self, &'static str> {
        let words: Vec<&str> = line.split_ascii_whitespace().take(5).collect();
        let word = |at: usize| words.get(at).map(|word| (*word).to_owned());
        Ok(match words.as_slice() {
            ["INIT"] => Self::Init,
            ["SPEAK"] => Self::Speak(Kind::Text),
            ["SOUND_ICON"] => Self::Speak(Kind::SoundIcon),
            ["CHAR"] => Self::Speak(Kind::Char),
            ["KEY"] => Self::Speak(Kind::Key),
            ["STOP"] => Self::Stop,
            ["PAUSE"] => Self::Pause,
            ["LIST", "VOICES"] | ["LIST", "VOICES", _] | ["LIST", "VOICES", _, _] => {
                Self::ListVoices { language: word(2), variant: word(3) }
            }
            ["SET"] => Self::Set,
            ["AUDIO"] => Self::Audio,
            ["LOGLEVEL"] => Self::LogLevel,
            ["DEBUG", "ON", file] => Self::Debug(Some((*file).to_owned())),
            ["DEBUG", "OFF"] => Self::Debug(None),
            ["DEBUG", ..] | ["LIST", ..] => return Err(BAD_SYNTAX),
            ["QUIT"] => Self::Quit,
            _ => return Err(UNKNOWN_COMMAND),
        })
    }
}

/// A line of the input.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Text(String),
    /// One of more than [`MAX_MESSAGE_BYTES`].
    TooLong,
    End,
}

/// Reads a line without its end. Bytes that are not UTF-8 become replacement characters.
///
/// # Errors
/// The input cannot be read.
pub(super) async fn read_line(input: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Line> {
    let (mut line, mut is_long) = (Vec::new(), false);
    loop {
        let read = input.fill_buf().await?;
        if read.is_empty() {
            // A line without an end is cut off.
            return Ok(Line::End);
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let part = &read[..end.unwrap_or(read.len())];
        is_long |= line.len() + part.len() > MAX_MESSAGE_BYTES;
        if !is_long {
            line.extend_from_slice(part);
        }
        let taken = end.map_or(read.len(), |end| end + 1);
        input.consume(taken);
        if end.is_some() {
            if is_long {
                return Ok(Line::TooLong);
            }
            let line = line.strip_suffix(b"\r").unwrap_or(&line);
            return Ok(Line::Text(String::from_utf8_lossy(line).into_owned()));
        }
    }
}

/// Lines up to one with a dot alone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block {
    Lines(Vec<String>),
    /// More than [`MAX_MESSAGE_BYTES`], which were read to their end.
    TooLong,
    End,
}

/// Reads lines up to one with a dot alone; the dot that hides another one at the start of a line is taken away.
///
/// # Errors
/// The input cannot be read.
pub(super) async fn read_block(input: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Block> {
    let (mut lines, mut bytes, mut is_long) = (Vec::new(), 0, false);
    loop {
        match read_line(input).await? {
            Line::End => return Ok(Block::End),
            Line::Text(line) if line == "." => {
                return Ok(if is_long { Block::TooLong } else { Block::Lines(lines) });
            }
            Line::Text(line) => {
                bytes += line.len() + 1;
                is_long |= bytes > MAX_MESSAGE_BYTES;
                if is_long {
                    lines.clear();
                } else {
                    lines.push(line.strip_prefix('.').map_or(line.clone(), str::to_owned));
                }
            }
            Line::TooLong => is_long = true,
        }
    }
}

/// What a module tells without being asked.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Event {
    Begin,
    End,
    Stop,
    Pause,
    IndexMark(String),
    /// A sound file to play.
    Icon(String),
    Audio {
        rate_hz: u32,
        samples: Vec<i16>,
    },
}

impl Event {
    /// Its bytes. Those of samples that would end a line are escaped.
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Begin => b"701 BEGIN\n".to_vec(),
            Self::End => b"702 END\n".to_vec(),
            Self::Stop => b"703 STOP\n".to_vec(),
            Self::Pause => b"704 PAUSE\n".to_vec(),
            Self::IndexMark(name) => format!("700-{name}\n700 INDEX MARK\n").into_bytes(),
            Self::Icon(path) => format!("706-{path}\n706 ICON\n").into_bytes(),
            Self::Audio { rate_hz, samples } => {
                let head = format!(
                    "705-bits=16\n705-num_channels=1\n705-sample_rate={rate_hz}\n705-num_samples={}\n705-big_endian=0\n\
                     705-AUDIO\0",
                    samples.len()
                );
                let mut bytes = head.into_bytes();
                for byte in samples.iter().flat_map(|sample| sample.to_le_bytes()) {
                    match byte {
                        b'\n' | ESCAPE => bytes.extend([ESCAPE, byte ^ FLIPPED]),
                        _ => bytes.push(byte),
                    }
                }
                bytes.extend(b"\n705 AUDIO\n");
                bytes
            }
        }
    }
}

/// The escape of HDLC, and the bit in which an escaped byte differs.
const ESCAPE: u8 = 0x7d;
const FLIPPED: u8 = 0x20;

/// Standard output: replies and events, each whole.
#[derive(Debug)]
pub(super) struct Output(Mutex<Stdout>);

impl Output {
    pub(super) fn new() -> Self {
        Self(Mutex::new(tokio::io::stdout()))
    }

    /// Sends a reply, of one line or more.
    ///
    /// # Errors
    /// Speech Dispatcher has closed the pipe.
    pub(super) async fn reply(&self, reply: &str) -> io::Result<()> {
        self.write(format!("{reply}\n").as_bytes()).await
    }

    /// Sends an event.
    ///
    /// # Errors
    /// As [`Self::reply`].
    pub(super) async fn send(&self, event: &Event) -> io::Result<()> {
        self.write(&event.bytes()).await
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let mut stdout = self.0.lock().await;
        stdout.write_all(bytes).await?;
        stdout.flush().await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_are_read_and_garbage_is_refused() {
        assert_eq!(Command::parse("SPEAK"), Ok(Command::Speak(Kind::Text)));
        assert_eq!(Command::parse("KEY"), Ok(Command::Speak(Kind::Key)));
        assert_eq!(Command::parse("DEBUG ON /tmp/x "), Ok(Command::Debug(Some("/tmp/x".to_owned()))));
        assert_eq!(
            Command::parse("LIST VOICES en none"),
            Ok(Command::ListVoices { language: Some("en".to_owned()), variant: Some("none".to_owned()) })
        );
        for (line, reply) in [
            ("", UNKNOWN_COMMAND),
            ("speak", UNKNOWN_COMMAND),
            ("SPEAK now", UNKNOWN_COMMAND),
            ("\u{fffd}", UNKNOWN_COMMAND),
            ("LIST", BAD_SYNTAX),
            ("DEBUG ON", BAD_SYNTAX),
            ("DEBUG ON a b", BAD_SYNTAX),
        ] {
            assert_eq!(Command::parse(line), Err(reply), "{line}");
        }
    }

    fn block(input: &[u8]) -> Block {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read_block(&mut &*input)).unwrap()
    }

    #[test]
    fn a_message_ends_with_a_dot_alone() {
        let lines = |input: &[u8]| match block(input) {
            Block::Lines(lines) => lines.join("|"),
            other => format!("{other:?}"),
        };
        assert_eq!(lines(b"a\r\n..\n.b\n\n.\nSTOP\n"), "a|.|b|");
        assert_eq!(lines(b".\n"), "");
        assert_eq!(lines(b"a\n"), "End");
        assert_eq!(lines(b"\xff\n.\n"), "\u{fffd}");
    }

    #[test]
    fn a_long_message_is_refused_whole() {
        let line = vec![b'a'; MAX_MESSAGE_BYTES + 1];
        assert_eq!(block(&[&line, &b"\nb\n.\n"[..]].concat()), Block::TooLong);
        let lines = b"abc\n".repeat(MAX_MESSAGE_BYTES / 4 + 1);
        assert_eq!(block(&[&lines, &b".\n"[..]].concat()), Block::TooLong);
        assert_eq!(block(&line), Block::End);
    }

    proptest! {
        #[test]
        fn any_input_ends(input in prop::collection::vec(any::<u8>(), 0..500)) {
            block(&input);
            let _ = Command::parse(&String::from_utf8_lossy(&input));
        }

        /// Audio is one line, from which its samples are read again.
        #[test]
        fn audio_has_no_ends_of_lines(samples in prop::collection::vec(any::<i16>(), 0..300)) {
            let event = Event::Audio { rate_hz: 24_000, samples: samples.clone() };
            let bytes = event.bytes();
            let start = bytes.iter().position(|byte| *byte == 0).unwrap() + 1;
            let end = start + bytes[start..].iter().position(|byte| *byte == b'\n').unwrap();
            prop_assert_eq!(&bytes[end..], b"\n705 AUDIO\n");
            let (mut plain, mut escaped) = (Vec::new(), false);
            for &byte in &bytes[start..end] {
                match (escaped, byte) {
                    (false, ESCAPE) => escaped = true,
                    (false, byte) => plain.push(byte),
                    (true, byte) => { plain.push(byte ^ FLIPPED); escaped = false; }
                }
            }
            let expected: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
            prop_assert_eq!(plain, expected);
        }
    }
}
