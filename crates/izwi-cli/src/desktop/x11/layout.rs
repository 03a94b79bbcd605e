//! The layout of the keyboard: which key gives a character, and which keys give none.
//!
//! Knows no connection.

use xkeysym::{Keysym, key};

/// 0 in the protocol of evdev, which programs of XKB do not take.
const RESERVED_KEYCODE: u8 = 8;

/// A key, and whether Shift is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stroke {
    pub(super) keycode: u8,
    pub(super) shift: bool,
}

/// The keysyms of all keys, as the core protocol tells them: of each key two of the first layout, then two of the second.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) first_keycode: u8,
    pub(super) keysyms_per_keycode: usize,
    pub(super) keysyms: Vec<u32>,
}

impl Layout {
    /// All keys with their keysyms.
    fn keys(&self) -> impl Iterator<Item = (u8, &[u32])> {
        (self.first_keycode..=u8::MAX).zip(self.keysyms.chunks(self.keysyms_per_keycode.max(1)))
    }

    /// The keysyms of a key in a layout, without and with Shift.
    fn levels(keysyms: &[u32], group: usize) -> [u32; 2] {
        let pair = |at: usize| [at, at + 1].map(|at| keysyms.get(at).copied().unwrap_or(key::NoSymbol));
        match (group, pair(2)) {
            (1, own) if own != [key::NoSymbol; 2] => own,
            // A key with one layout has it in each.
            _ => pair(0),
        }
    }

    /// How to write a character in a layout (0 or 1) while Caps Lock is on or not. An end of line is Return.
    pub(super) fn stroke(&self, c: char, group: usize, caps_lock: bool) -> Option<Stroke> {
        let gives = |keysym: u32| match c {
            '\n' => keysym == key::Return,
            c => {
                let keysym = Keysym::new(keysym);
                !keysym.is_keypad_key() && keysym.key_char() == Some(c)
            }
        };
        let found = [0, 1].into_iter().find_map(|level| {
            let mut keys = self.keys().map(|(keycode, keysyms)| (keycode, Self::levels(keysyms, group)));
            keys.find(|(_, levels)| gives(levels[level]))
                .map(|(keycode, levels)| (keycode, levels, level == 1))
        });
        let (keycode, [plain, shifted], shift) = found?;
        // Caps Lock exchanges the two of a letter.
        let letter = |keysym: u32| Keysym::new(keysym).key_char();
        let is_letter =
            letter(plain).is_some_and(|plain| upper(plain) != plain && letter(shifted) == Some(upper(plain)));
        Some(Stroke { keycode, shift: shift != (caps_lock && is_letter) })
    }

    /// The key with a keysym.
    pub(super) fn keycode(&self, keysym: u32) -> Option<u8> {
        self.keys().find(|(_, keysyms)| keysyms.contains(&keysym)).map(|(keycode, _)| keycode)
    }

    /// The keysyms of a key.
    pub(super) fn keysyms(&self, keycode: u8) -> &[u32] {
        self.keys().find(|(known, _)| *known == keycode).map_or(&[], |(_, keysyms)| keysyms)
    }

    /// Keys that give nothing, in order.
    pub(super) fn unused(&self) -> Vec<u8> {
        let unused = self.keys().filter(|(keycode, keysyms)| {
            *keycode != RESERVED_KEYCODE && keysyms.iter().all(|&keysym| keysym == key::NoSymbol)
        });
        unused.map(|(keycode, _)| keycode).collect()
    }
}

/// The keysyms of a key that writes a character: of a letter the small and the capital one.
pub(super) fn keysyms_of(c: char) -> [u32; 2] {
    let lower = single(c.to_lowercase()).unwrap_or(c);
    let pair = if upper(lower) == c || lower == c { [lower, upper(lower)] } else { [c, c] };
    pair.map(|c| Keysym::from_char(c).raw())
}

/// The capital letter, or the character itself where there is none of one character.
fn upper(c: char) -> char {
    single(c.to_uppercase()).unwrap_or(c)
}

fn single(mut chars: impl Iterator<Item = char>) -> Option<char> {
    let only = chars.next()?;
    chars.next().is_none().then_some(only)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A few keys of an American and a Russian layout.
    fn layout() -> Layout {
        let rows: [[u32; 4]; 6] = [
            [0, 0, 0, 0],
            [key::a, key::A, key::Cyrillic_ef, key::Cyrillic_EF],
            [key::_1, key::exclam, 0, 0],
            [key::KP_2, key::KP_2, 0, 0],
            [key::Return, 0, 0, 0],
            [0, 0, 0, 0],
        ];
        Layout { first_keycode: 8, keysyms_per_keycode: 4, keysyms: rows.concat() }
    }

    #[test]
    fn a_character_has_its_key_in_the_active_layout() {
        let layout = layout();
        let stroke =
            |c, group, caps| layout.stroke(c, group, caps).map(|stroke| (stroke.keycode, stroke.shift));
        for (c, group, caps_lock, expected) in [
            ('a', 0, false, Some((9, false))),
            ('A', 0, false, Some((9, true))),
            ('a', 0, true, Some((9, true))),
            ('A', 0, true, Some((9, false))),
            ('!', 0, true, Some((10, true))),
            ('a', 1, false, None),
            ('Ф', 1, false, Some((9, true))),
            ('ф', 0, false, None),
            ('1', 1, false, Some((10, false))),
            ('2', 0, false, None),
            ('\n', 0, false, Some((12, false))),
            ('ü', 0, false, None),
        ] {
            assert_eq!(stroke(c, group, caps_lock), expected, "{c} {group} {caps_lock}");
        }
        assert_eq!(layout.unused(), [13]);
        assert_eq!((layout.keycode(key::Return), layout.keysyms(10)[0]), (Some(12), key::_1));
    }

    #[test]
    fn letters_are_bound_with_their_capitals() {
        for (c, expected) in [
            ('ü', ['ü', 'Ü']),
            ('Ü', ['ü', 'Ü']),
            ('€', ['€', '€']),
            ('ß', ['ß', 'ß']),
            ('İ', ['İ', 'İ']),
            ('語', ['語', '語']),
            ('😀', ['😀', '😀']),
        ] {
            let chars = keysyms_of(c).map(|keysym| Keysym::new(keysym).key_char().unwrap());
            assert_eq!(chars, expected);
        }
    }
}
