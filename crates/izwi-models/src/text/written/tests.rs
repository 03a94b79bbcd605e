//! What is said, and what is written; words that come one by one.

use izwi_types::Word;
use proptest::prelude::*;

use super::*;

const NUMBERS: WriterOptions = WriterOptions { numbers: true, commands: false };
const COMMANDS: WriterOptions = WriterOptions { numbers: false, commands: true };
const BOTH: WriterOptions = WriterOptions { numbers: true, commands: true };

fn at_once(text: &str, options: WriterOptions, language: &str) -> String {
    written(words_of(text), options, Some(language)).concat()
}

/// The words, with the time of each.
fn timed(text: &str) -> Vec<Word> {
    let word = |(at, text): (usize, String)| {
        let (start_s, end_s) = (at as f64, at as f64 + 0.5);
        Word { text, start_s, end_s, probability: 0.5 }
    };
    words_of(text).into_iter().enumerate().map(word).collect()
}

/// What is said, and what is written.
const FIGURES: &[(&str, &str)] = &[
    ("twenty five dollars at three thirty p m", "$25 at 3:30 p.m."),
    ("there are one hundred and twenty three people here", "there are 123 people here"),
    ("two thousand and five", "2005"),
    ("in nineteen ninety nine we moved", "in 1999 we moved"),
    ("in twenty twenty five", "in 2025"),
    ("in nineteen oh five and eighteen hundred", "in 1905 and 1800"),
    ("the nineteen eighties", "the 1980s"),
    ("ten sixty six", "1066"),
    ("three million people", "3 million people"),
    ("two and a half million people", "2.5 million people"),
    ("two hundred fifty million", "250 million"),
    ("three million two hundred thousand and five", "3,200,005"),
    ("nine hundred ninety nine billion", "999 billion"),
    ("one point five percent", "1.5%"),
    ("three and a half percent", "3.5%"),
    ("fifty per cent of them", "50% of them"),
    ("a hundred percent", "100%"),
    ("zero point zero five", "0.05"),
    ("three point fourteen", "3.14"),
    ("one point two million dollars", "$1.2 million"),
    ("the twenty first century", "the 21st century"),
    ("the eleventh hour on the thirtieth", "the 11th hour on the 30th"),
    ("twelfth twenty third and twenty second", "12th 23rd and 22nd"),
    ("january fifth twenty twenty five", "January 5, 2025"),
    ("the fifth of july twenty twelve", "the 5th of July 2012"),
    ("on march third", "on March 3"),
    ("on may the fourth", "on May 4"),
    ("in may two thousand ten", "in May 2010"),
    ("june twenty second nineteen forty four", "June 22, 1944"),
    ("december twenty five", "December 25"),
    ("the thirty first of december", "the 31st of December"),
    ("a quarter past two p m", "a 2:15 p.m."),
    ("half past eleven a m", "11:30 a.m."),
    ("quarter to one p m", "12:45 p.m."),
    ("ten a m and eleven pm", "10 a.m. and 11 p.m."),
    ("seven thirty in the morning", "7:30 in the morning"),
    ("at nine oh five", "at 9:05"),
    ("at five o'clock", "at 5 o'clock"),
    ("i am ten years old", "i am 10 years old"),
    ("ten or twelve people", "10 or 12 people"),
    ("five to ten people", "5 to 10 people"),
    ("between ten and twenty", "between 10 and 20"),
    ("five hundred euros", "€500"),
    ("five dollars and fifty cents", "$5.50"),
    ("five dollars five cents", "$5.05"),
    ("ten pounds fifty pence", "£10.50"),
    ("twenty pounds", "20 pounds"),
    ("fifty cents", "50 cents"),
    ("one dollar", "$1"),
    ("a five dollar bill", "a $5 bill"),
    ("a hundred dollars", "$100"),
    ("two hundred fifty thousand dollars", "$250,000"),
    ("six feet tall", "6 feet tall"),
    ("ten kilometers per hour", "10 km/h"),
    ("eighty eight miles per hour", "88 mph"),
    ("seventy two degrees fahrenheit", "72 °F"),
    ("minus twenty five degrees celsius", "-25 °C"),
    ("three kilograms", "3 kg"),
    ("five hundred milliliters", "500 ml"),
    ("two hundred gigabytes", "200 GB"),
    ("call me at five five five one two three four", "call me at 5551234"),
    ("version two point zero", "version 2.0"),
    ("chapter eleven page five", "chapter 11 page 5"),
    ("room one oh one", "room 101"),
    ("flight nine eleven", "flight 911"),
    ("one thousand two hundred thirty four", "1234"),
    ("ten thousand and one nights", "10,001 nights"),
    ("twelve hundred", "1200"),
    ("four point five stars", "4.5 stars"),
    ("ninety nine bottles of beer", "99 bottles of beer"),
    ("that one costs forty dollars", "that one costs $40"),
    ("twenty-five dollars", "$25"),
    ("Twenty five dollars.", "$25."),
    ("I paid (twenty five dollars), thirty cents!", "I paid ($25), 30 cents!"),
    ("twenty, five", "20, five"),
    ("thirty two, thirty three", "32, 33"),
];

#[test]
fn numbers_are_written_in_figures() {
    for (said, expected) in FIGURES {
        assert_eq!(at_once(said, NUMBERS, "en"), *expected, "{said}");
    }
}

#[test]
fn what_is_no_number_or_has_two_readings_stays() {
    for said in [
        "one of them",
        "no one knows",
        "i have two dogs",
        "he came third",
        "first of all",
        "give me a second",
        "the second one is better",
        "a twenty second wait",
        "i may go",
        "may i have one",
        "march on washington",
        "it is half past three",
        "at ten to five",
        "two or three times",
        "three quarters",
        "one half",
        "three and a half",
        "minus five",
        "one two three",
        "my number is three three",
        "three thirty",
        "fifty fifty",
        "a couple hundred",
        "hundreds of people",
        "a hundred times",
        "a million thanks",
        "a dollar",
        "once upon a time",
        "oh my",
        "at one point i left",
        "to be or not to be",
        "the nineties",
        "one moment please",
        "zero",
        "",
        " ",
    ] {
        assert_eq!(at_once(said, NUMBERS, "en"), said);
    }
    assert_eq!(at_once("einundzwanzig twenty five", NUMBERS, "de"), "einundzwanzig twenty five");
}

#[test]
fn commands_are_carried_out_and_the_marks_around_them_go() {
    for (said, expected) in [
        ("Hello, comma, world.", "Hello, world."),
        ("Hello. Comma. World.", "Hello, world."),
        ("hello comma world", "hello, world"),
        ("Hello comma, Peter full stop how are you question mark", "Hello, Peter. How are you?"),
        ("It works. Period. And so on.", "It works. And so on."),
        (
            "Dear Anna, comma, new line, thanks for all. New paragraph. See you.",
            "Dear Anna,\nThanks for all.\n\nSee you.",
        ),
        ("He said colon open quote yes close quote full stop", "He said: \"yes\"."),
        ("yes full stop open quote no close quote", "yes. \"No\""),
        ("it (open bracket) see below close bracket, exclamation mark", "it (see below)!"),
        ("one semicolon two dash three hyphen four", "one; two – three-four"),
        ("Well, hyphen, known", "Well-known"),
        ("wait comma I know", "wait, I know"),
        ("Hello. Comma. I know.", "Hello, I know."),
    ] {
        assert_eq!(at_once(said, COMMANDS, "en"), expected, "{said}");
    }
    for said in [
        "a period of time",
        "The period is over.",
        "this new line of products",
        "the question mark",
        "a comma",
    ] {
        assert_eq!(at_once(said, COMMANDS, "en"), said);
    }
    for (language, said, expected) in [
        ("de", "Hallo Komma Welt Punkt neue Zeile wie geht es Fragezeichen", "Hallo, Welt.\nWie geht es?"),
        ("de", "Das ist 3 Komma 5 und der Punkt ist klar", "Das ist 3 Komma 5 und der Punkt ist klar"),
        (
            "fr",
            "Bonjour virgule ça va point d'interrogation à la ligne merci point",
            "Bonjour, ça va ?\nMerci.",
        ),
        (
            "es",
            "Hola coma mundo punto y aparte abrir interrogación qué tal cerrar interrogación",
            "Hola, mundo.\n\n¿Qué tal?",
        ),
        ("it", "ciao virgola comma", "ciao virgola comma"),
    ] {
        assert_eq!(at_once(said, COMMANDS, language), expected, "{said}");
    }
    assert_eq!(at_once("twenty five comma thirty full stop", BOTH, "en"), "25, 30.");
}

#[test]
fn a_run_becomes_one_word_with_its_times() {
    let words = written(timed(" it was twenty five dollars, then"), NUMBERS, Some("en"));
    let spans: Vec<_> = words.iter().map(|word| (word.text.as_str(), word.start_s, word.end_s)).collect();
    assert_eq!(spans, [(" it", 0.0, 0.5), (" was", 1.0, 1.5), (" $25,", 2.0, 4.5), (" then", 5.0, 5.5)]);
    assert_eq!(words[2].probability, 0.5);
    let text = " it was twenty five dollars, then";
    let segment = Segment { text: text.to_owned(), words: timed(text), ..Segment::default() };
    let bare = Segment { words: Vec::new(), ..segment.clone() };
    let segment = normalised(segment, Some("en"));
    assert_eq!((segment.text.as_str(), segment.words), (" it was $25, then", words));
    assert_eq!(normalised(bare, Some("en")).text, segment.text);
}

#[test]
fn words_leave_once_nothing_can_change_them() {
    let mut writer = Writer::new(BOTH);
    let mut push = |word: &str| writer.push([word.to_owned()], Some("en")).concat();
    assert_eq!([" it", " cost", " twenty", " five"].map(&mut push).concat(), " it cost");
    assert_eq!(push(" thousand"), "");
    assert_eq!(writer.preview().concat(), " 25,000");
    assert_eq!(writer.push([" dollars".to_owned()], Some("en")).concat(), "");
    assert_eq!(writer.preview().concat(), " $25,000");
    assert_eq!(writer.push([" so".to_owned(), " new".to_owned()], Some("en")).concat(), " $25,000 so");
    assert!(writer.is_waiting());
    assert_eq!(writer.finish().concat(), " new");
    assert!(!writer.is_waiting());
    let mut writer = Writer::new(BOTH);
    for n in 0..1_000 {
        writer.push([" one".to_owned(), " point".to_owned()], Some("en"));
        assert!(writer.preview().concat().split_whitespace().count() < 40, "{n} words wait");
    }
}

/// Words of the rules, and others.
fn spoken() -> impl Strategy<Value = String> {
    let said = "one two ten twelve twenty thirty-five ninety hundred thousand million and a point oh zero first second \
                twentieth third dollars cents pounds pence percent per cent january may march of the at p m p.m. am half past \
                quarter to or minus degrees celsius o'clock in morning page nineties comma, Comma. comma new line. paragraph \
                full stop open quote close bracket hyphen question mark period I Word word. (word) , . … - Ünd 5 é";
    let said: Vec<&str> = said.split_whitespace().collect();
    let word = prop_oneof![9 => prop::sample::select(said).prop_map(str::to_owned), 1 => "\\PC{0,6}"];
    let joint = prop_oneof![9 => Just(" "), 1 => Just("")];
    (joint, word).prop_map(|(joint, word)| format!("{joint}{word}"))
}

proptest! {
    #[test]
    fn words_that_come_one_by_one_become_what_they_become_at_once(
        words in prop::collection::vec(spoken(), 0..40),
        numbers: bool,
        commands: bool,
        language in prop::sample::select(vec!["en", "de", "fr", "es", "xx"]),
        cuts in prop::collection::vec(1_usize..5, 0..40),
    ) {
        let options = WriterOptions { numbers, commands };
        let whole = written(words.clone(), options, Some(language)).concat();
        let mut writer = Writer::new(options);
        let (mut text, mut rest) = (String::new(), words.as_slice());
        for cut in cuts {
            let (next, behind) = rest.split_at(cut.min(rest.len()));
            text += &writer.push(next.iter().cloned(), Some(language)).concat();
            prop_assert!(whole.starts_with(&text), "{text:?} of {whole:?}");
            rest = behind;
        }
        text += &writer.push(rest.iter().cloned(), Some(language)).concat();
        text += &writer.preview().concat();
        prop_assert_eq!(text, whole);
    }

    #[test]
    fn figures_stay_as_they_are(words in prop::collection::vec(spoken(), 0..30)) {
        for word in written(timed(&words.concat()), NUMBERS, Some("en")) {
            // Made of several words, and so rewritten.
            if word.end_s - word.start_s > 0.5 {
                prop_assert_eq!(at_once(&word.text, NUMBERS, "en"), word.text);
            }
        }
    }

    #[test]
    fn times_cover_those_of_the_words(words in prop::collection::vec(spoken(), 0..30)) {
        let words = timed(&words.concat());
        let (first, last) = (words.first().map(|w| w.start_s), words.last().map(|w| w.end_s));
        let written = written(words, NUMBERS, Some("en"));
        prop_assert!(written.windows(2).all(|pair| pair[0].end_s < pair[1].start_s));
        prop_assert_eq!((written.first().map(|w| w.start_s), written.last().map(|w| w.end_s)), (first, last));
    }
}
