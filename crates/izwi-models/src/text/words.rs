//! Word tables of English: what abbreviations, units, symbols and currencies are read as.
//!
//! Readings follow the front end of the default voice where it has one, because the
//! voice learnt from them. The long tables are files of `normalise/`, their fields parted by tabs.

use std::sync::LazyLock;

/// Rows of a file.
type Table<const N: usize> = LazyLock<Vec<[&'static str; N]>>;
/// Words of one kind.
type List = LazyLock<Vec<&'static str>>;

/// The rows of a file.
pub(super) fn table<const N: usize>(file: &'static str) -> Vec<[&'static str; N]> {
    file.lines().filter_map(|line| line.split('\t').collect::<Vec<_>>().try_into().ok()).collect()
}

/// The words of a line of `lists.tsv`, which begins with its name.
fn list(name: &str) -> Vec<&'static str> {
    let mut lines = include_str!("normalise/lists.tsv").lines().map(|line| line.split('\t'));
    let found = lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.collect()));
    found.unwrap_or_default()
}

/// Months in order.
pub(super) const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Symbols read wherever they stand; an empty reading drops them.
pub(super) const SYMBOLS: &[(char, &str)] = &[
    ('°', "degrees"),
    ('¢', "cents"),
    ('§', "section"),
    ('¶', "paragraph"),
    ('†', ""),
    ('‡', ""),
    ('∞', "infinity"),
    ('∑', "the sum of"),
    ('∆', "delta"),
    ('∴', "therefore"),
    ('∂', "partial"),
    ('∫', "the integral of"),
    ('√', "the square root of"),
    ('⇒', "implies"),
    ('↑', "up"),
    ('↓', "down"),
    ('↔', "to and from"),
    ('♯', "sharp"),
    ('♭', "flat"),
    ('−', "minus"),
    ('■', ""),
    ('●', ""),
    ('▪', ""),
    ('◦', ""),
    ('‣', ""),
    ('✓', ""),
    ('~', ""),
    ('±', "plus or minus"),
    ('×', "times"),
    ('÷', "divided by"),
    ('™', ""),
    ('®', ""),
    ('©', "copyright"),
    ('•', ""),
    ('→', "to"),
    ('←', ""),
    ('½', "one half"),
    ('¼', "one quarter"),
    ('¾', "three quarters"),
    ('²', "squared"),
    ('³', "cubed"),
    ('µ', "micro"),
    ('|', ","),
    ('*', ""),
    ('^', "to the power of"),
    ('_', ""),
    ('\\', ""),
    ('#', "hashtag"),
];

/// Symbols read only between two words.
pub(super) const RELATIONS: &[(char, &str)] = &[
    ('=', "equals"),
    ('<', "less than"),
    ('>', "greater than"),
    ('+', "plus"),
    ('≤', "is less than or equal to"),
    ('≥', "is greater than or equal to"),
    ('≠', "is not equal to"),
    ('≈', "is approximately"),
    ('≡', "is identical to"),
    ('∈', "is in"),
    ('&', "and"),
    ('⋅', "times"),
    ('·', "times"),
    ('@', "at"),
];

/// Cardinals below twenty.
pub(super) const ONES: [&str; 20] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
];

/// Tens from twenty.
pub(super) const TENS: [&str; 8] =
    ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];

/// A number after these is read digit by digit.
pub(super) static DIGITS_BEFORE: List = LazyLock::new(|| list("digits_before"));

/// Greek letters that stand for themselves.
pub(super) const GREEK: &[(&str, &str)] = &[
    ("α", "alpha"),
    ("β", "beta"),
    ("γ", "gamma"),
    ("δ", "delta"),
    ("ε", "epsilon"),
    ("ζ", "zeta"),
    ("η", "eta"),
    ("θ", "theta"),
    ("λ", "lambda"),
    ("μ", "mu"),
    ("ν", "nu"),
    ("ξ", "xi"),
    ("π", "pi"),
    ("ρ", "rho"),
    ("σ", "sigma"),
    ("τ", "tau"),
    ("φ", "phi"),
    ("χ", "chi"),
    ("ψ", "psi"),
    ("ω", "omega"),
    ("Γ", "gamma"),
    ("Δ", "delta"),
    ("Θ", "theta"),
    ("Λ", "lambda"),
    ("Π", "pi"),
    ("Σ", "sigma"),
    ("Φ", "phi"),
    ("Ψ", "psi"),
    ("Ω", "omega"),
];

/// Titles before a name; none ends a sentence.
pub(super) static TITLES: Table<2> = LazyLock::new(|| table(include_str!("normalise/titles.tsv")));

/// Other abbreviations, as written.
pub(super) static ABBREVIATIONS: Table<2> =
    LazyLock::new(|| table(include_str!("normalise/abbreviations.tsv")));

/// Units after a number: one, several.
pub(super) static UNITS: Table<3> = LazyLock::new(|| table(include_str!("normalise/units.tsv")));

/// States after a comma.
pub(super) static STATES: Table<2> = LazyLock::new(|| table(include_str!("normalise/states.tsv")));

/// What is read as nothing else is.
pub(super) static IDIOMS: Table<2> = LazyLock::new(|| table(include_str!("normalise/idioms.tsv")));

/// Currencies before or after a number: sign or code, one and several of it, and of its hundredth parts where it has them.
pub(super) static CURRENCIES: Table<5> = LazyLock::new(|| table(include_str!("normalise/currencies.tsv")));

/// Abbreviations that are always followed by what they belong to: their full stop never ends a sentence.
pub(super) static LEADING: List = LazyLock::new(|| list("leading"));

/// Abbreviations that are followed by a number: before one their full stop does not end a sentence.
pub(super) static NUMBERED: List = LazyLock::new(|| list("numbered"));

/// Words before a Roman numeral that counts: "Chapter IV" is chapter four.
pub(super) static COUNTED: List = LazyLock::new(|| list("counted"));

/// Names before a Roman numeral that orders: "Henry VIII" is Henry the eighth.
pub(super) static ORDERED: List = LazyLock::new(|| list("ordered"));

/// Years stand before these.
pub(super) static YEAR_AFTER: List = LazyLock::new(|| list("year_after"));

/// A number of four digits after these is a year.
pub(super) static YEAR_BEFORE: List = LazyLock::new(|| list("year_before"));

/// A number after these is a name: it is read in pairs of digits.
pub(super) static CODE_BEFORE: List = LazyLock::new(|| list("code_before"));

/// Words in the form of a plural that count nothing.
pub(super) static NO_NOUNS: List = LazyLock::new(|| list("no_nouns"));

/// People and other plurals without "s".
pub(super) static PEOPLE: List = LazyLock::new(|| list("people"));

/// Small words, which no number is counted by.
pub(super) static FUNCTION_WORDS: List = LazyLock::new(|| list("function_words"));

/// Words before an adjective and its noun.
pub(super) static DETERMINERS: List = LazyLock::new(|| list("determiners"));

/// What is measured in fractions.
pub(super) static FRACTION_NOUNS: List = LazyLock::new(|| list("fraction_nouns"));

/// Words before a number of points out of a maximum.
pub(super) static RATING_WORDS: List = LazyLock::new(|| list("rating_words"));

/// Books of the Bible whose chapters and verses are parted by a colon.
pub(super) static BIBLE: List = LazyLock::new(|| list("bible"));

/// Capitalised words after which capitals are no number: "The IV".
pub(super) static NO_NAMES: List = LazyLock::new(|| list("no_names"));

/// Ends of the names of files.
pub(super) static EXTENSIONS: List = LazyLock::new(|| list("extensions"));

/// A decimal after these is a version.
pub(super) static VERSIONED: List = LazyLock::new(|| list("versioned"));

/// After a name and "I", these say that it is a pronoun.
pub(super) static PRONOUN_BEFORE: List = LazyLock::new(|| list("pronoun_before"));

/// "3x" before these is three times.
pub(super) static TIMES_BEFORE: List = LazyLock::new(|| list("times_before"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_the_tables_is_a_row() {
        fn check<const N: usize>(rows: &Table<N>, file: &str) {
            assert_eq!(rows.len(), file.lines().count());
            assert!(rows.iter().all(|row| !row[0].is_empty() && !row[0].contains("  ")));
        }
        check(&TITLES, include_str!("normalise/titles.tsv"));
        check(&ABBREVIATIONS, include_str!("normalise/abbreviations.tsv"));
        check(&UNITS, include_str!("normalise/units.tsv"));
        check(&STATES, include_str!("normalise/states.tsv"));
        check(&IDIOMS, include_str!("normalise/idioms.tsv"));
        check(&CURRENCIES, include_str!("normalise/currencies.tsv"));
        let lists = [
            &LEADING,
            &NUMBERED,
            &COUNTED,
            &ORDERED,
            &YEAR_AFTER,
            &YEAR_BEFORE,
            &CODE_BEFORE,
            &DIGITS_BEFORE,
        ];
        assert!(lists.iter().all(|list| !list.is_empty()));
        let lists = [
            &NO_NOUNS,
            &PEOPLE,
            &FUNCTION_WORDS,
            &DETERMINERS,
            &FRACTION_NOUNS,
            &RATING_WORDS,
            &BIBLE,
            &NO_NAMES,
        ];
        assert!(lists.iter().all(|list| !list.is_empty()));
        assert!(!EXTENSIONS.is_empty() && !VERSIONED.is_empty());
    }
}
