//! Types what is dictated where its turn began.
//!
//! The text of a turn goes to the window that had the focus when somebody began to speak, and only while that window has it: what
//! comes after the user has gone elsewhere is told in the terminal instead. What is typed is final, and never taken back.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Event;
use super::history;
use super::trigger::Stop;
use crate::desktop::{Desktop, Keyboard, Window};
use crate::failure::{self, Failure};
use crate::settings::{Dictation, Resolved};

/// Pieces of text, or messages, that may wait.
const MAX_WAITING: usize = 1_024;
/// Time between two looks at keys that the user holds.
const POLL: Duration = Duration::from_millis(20);
/// Time after which the user is told that keys are held.
const HELD: Duration = Duration::from_secs(3);

/// Where text is typed, with what holds there.
#[derive(Debug)]
pub(super) struct Cursor {
    desktop: Desktop,
    resolved: Resolved,
    /// The terminal that runs this command: what is typed there would be a command line later.
    own: Option<Window>,
}

/// Text for a window.
#[derive(Debug)]
struct Piece {
    window: Window,
    text: String,
    turn: u64,
}

/// Where the text of a turn goes.
#[derive(Debug)]
struct Target {
    window: Option<Window>,
    names: Vec<String>,
    dictation: Dictation,
    /// Why nothing is typed.
    refusal: Option<String>,
    is_written: bool,
}

/// The text of one dictation on its way to the cursor.
#[derive(Debug)]
pub(super) struct Typist {
    cursor: Arc<Cursor>,
    targets: BTreeMap<u64, Target>,
    /// The window that was written to last, and its last character.
    last: Option<(Window, char)>,
    pieces: Option<mpsc::Sender<Piece>>,
    told: mpsc::Receiver<String>,
}

impl Cursor {
    /// Connects to the desktop.
    ///
    /// # Errors
    /// There is none, or programs cannot type there.
    pub(super) fn open(resolved: &Resolved) -> Result<Self> {
        let desktop = Desktop::open()?;
        // On Wayland the window is not known, and may be any.
        let own =
            desktop.focus().filter(|window| io::stdin().is_terminal() && !desktop.names(*window).is_empty());
        Ok(Self { desktop, resolved: resolved.clone(), own })
    }

    pub(super) fn desktop(&self) -> &Desktop {
        &self.desktop
    }

    /// What holds where text would go now.
    ///
    /// # Errors
    /// Nothing is typed there; the message tells why.
    pub(super) fn here(&self) -> Result<Dictation, String> {
        let target = self.target();
        target.refusal.map_or(Ok(target.dictation), Err)
    }

    /// What holds everywhere.
    pub(super) fn everywhere(&self) -> Dictation {
        Dictation::of(&self.resolved.settings.dictation, &[])
    }

    fn target(&self) -> Target {
        let window = self.desktop.focus();
        let names = window.map(|window| self.desktop.names(window)).unwrap_or_default();
        let dictation = Dictation::of(&self.resolved.settings.dictation, &names);
        let refusal = match window {
            None => Some("no window has the focus".to_owned()),
            Some(_) if window == self.own => {
                Some("this terminal has the focus; click into another window".to_owned())
            }
            Some(_) if !dictation.types => {
                let name = names.last().map_or("this program", String::as_str);
                Some(format!("the settings have type = false for {name}"))
            }
            Some(_) => None,
        };
        Target { window, names, dictation, refusal, is_written: false }
    }
}

/// The next message of a typist for the user; `None` without one, or once it has typed all.
pub(super) async fn told(typist: &mut Option<Typist>) -> Option<String> {
    match typist {
        Some(typist) => typist.told.recv().await,
        None => None,
    }
}

/// Waits until a typist has typed all.
///
/// # Errors
/// A signal comes before.
pub(super) async fn finish(mut typist: Option<Typist>, stop: &mut Stop, tell: impl Fn(&str)) -> Result<()> {
    if let Some(typist) = &mut typist {
        typist.pieces = None;
    }
    loop {
        tokio::select! {
            message = told(&mut typist) => match message {
                Some(message) => tell(&message),
                None => return Ok(()),
            },
            () = stop.interrupted() => if stop.leaves(true, false) {
                return Err(Failure::Interrupted.into());
            },
        }
    }
}

impl Typist {
    /// Begins to type; `is_down` tells whether the hotkey is held, which no text may meet.
    ///
    /// # Errors
    /// The system refuses a keyboard.
    pub(super) fn start(cursor: Arc<Cursor>, is_down: Option<Arc<AtomicBool>>) -> Result<Self> {
        let keyboard = cursor.desktop.keyboard()?;
        let (pieces, queue) = mpsc::channel(MAX_WAITING);
        let (sender, told) = mpsc::channel(MAX_WAITING);
        let hands = Hands { desktop: cursor.desktop.clone(), keyboard, is_down, told: sender };
        tokio::spawn(hands.work(queue));
        Ok(Self { cursor, targets: BTreeMap::new(), last: None, pieces: Some(pieces), told })
    }

    /// Takes an event of the session. Returns what the user must know.
    pub(super) fn take(&mut self, event: &Event) -> Option<String> {
        let turn = event.turn.unwrap_or_default();
        match event.kind.as_str() {
            "speech.started" => {
                self.targets.insert(turn, self.cursor.target());
                None
            }
            "committed" => self.write(turn, event.text.as_deref().unwrap_or_default()),
            "turn.end" => self.end_turn(turn, event.text.as_deref().unwrap_or_default().trim()),
            _ => None,
        }
    }

    fn write(&mut self, turn: u64, text: &str) -> Option<String> {
        let cursor = &self.cursor;
        let target = self.targets.entry(turn).or_insert_with(|| cursor.target());
        let window = target.window.filter(|_| target.refusal.is_none())?;
        let text = if target.is_written { text.to_owned() } else { text.trim_start_matches(' ').to_owned() };
        let (Some(first), Some(last)) = (text.chars().next(), text.chars().next_back()) else { return None };
        let before = self.last.filter(|(other, _)| *other == window && !target.is_written);
        let joint = if before.is_some_and(|(_, before)| has_space(before, first)) { " " } else { "" };
        target.is_written = true;
        self.last = Some((window, last));
        let piece = Piece { window, text: format!("{joint}{text}"), turn };
        let sent = self.pieces.as_ref().map(|pieces| pieces.try_send(piece));
        matches!(sent, Some(Err(_))).then(|| format!("not typed, keys are held for too long: {text}"))
    }

    fn end_turn(&mut self, turn: u64, text: &str) -> Option<String> {
        let target = self.targets.remove(&turn)?;
        if text.is_empty() {
            return None;
        }
        if target.dictation.history {
            let application = target.names.last().map(String::as_str);
            if let Err(error) = history::keep(&self.cursor.resolved.settings.home, application, text) {
                return Some(failure::render(&error).trim_end().to_owned());
            }
        }
        target.refusal.map(|why| format!("not typed: {why}"))
    }
}

/// Whether a space is between a character and the next turn's first one.
fn has_space(before: char, first: char) -> bool {
    let closes = matches!(first, ',' | '.' | '?' | '!' | ':' | ';' | ')' | '”' | '»');
    let opens = before.is_whitespace() || matches!(before, '(' | '„' | '«');
    // Scripts without spaces: Thai, Lao, Burmese and Khmer; the marks, syllables and characters of East Asia but Korean.
    let is_dense = |c: char| {
        matches!(c, '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3000}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
    };
    !(closes || opens || first.is_whitespace() || is_dense(before) && is_dense(first))
}

/// What types, piece by piece.
struct Hands {
    desktop: Desktop,
    keyboard: Keyboard,
    is_down: Option<Arc<AtomicBool>>,
    told: mpsc::Sender<String>,
}

impl Hands {
    async fn work(mut self, mut queue: mpsc::Receiver<Piece>) {
        // The turn of which no more is typed.
        let mut broken = None;
        while let Some(Piece { window, text, turn }) = queue.recv().await {
            let message = if broken == Some(turn) {
                format!("not typed: {text}")
            } else {
                match self.write(window, &text).await {
                    Ok("") => continue,
                    Ok(rest) => format!("not typed, as another window has the focus: {rest}"),
                    Err(error) => format!("not typed: {text}\n{}", failure::render(&error).trim_end()),
                }
            };
            broken = Some(turn);
            // Nobody is left to tell it to.
            let _ = self.told.send(message).await;
        }
        self.keyboard.settle().await;
    }

    /// Types a text into a window while it has the focus. Returns the rest.
    async fn write<'t>(&mut self, window: Window, text: &'t str) -> Result<&'t str> {
        let mut rest = text;
        while !rest.is_empty() {
            self.wait_for_free_keys().await?;
            if self.desktop.focus() != Some(window) {
                break;
            }
            rest = &rest[self.keyboard.write(rest).await?..];
        }
        Ok(rest)
    }

    /// Waits until the user holds no key: with Ctrl, Alt or the hotkey, text would be commands.
    async fn wait_for_free_keys(&mut self) -> Result<()> {
        let mut told_at = Some(Instant::now() + HELD);
        let is_down =
            |key: &Option<Arc<AtomicBool>>| key.as_ref().is_some_and(|key| key.load(Ordering::Relaxed));
        while is_down(&self.is_down) || !self.keyboard.is_free()? {
            if !is_down(&self.is_down) && told_at.is_some_and(|at| Instant::now() >= at) {
                told_at = None;
                let _ = self.told.send("text waits until no key is held".to_owned()).await;
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_joined_by_a_space_where_one_belongs() {
        for (before, first, expected) in [
            ('.', 'A', true),
            ('o', 'w', true),
            ('o', ',', false),
            ('\n', 'A', false),
            (' ', 'A', false),
            ('o', '\n', false),
            ('(', 'a', false),
            ('。', '私', false),
            ('。', 'A', true),
            ('요', '나', true),
        ] {
            assert_eq!(has_space(before, first), expected, "{before:?} {first:?}");
        }
    }
}
