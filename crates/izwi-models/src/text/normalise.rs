//! Numbers, dates, times, money, units, abbreviations and symbols as the words a reader would say.
//!
//! One sentence at a time. Plain cardinals, ordinals, years, decimals and `$ £ €` amounts are left as they are: the
//! phonemiser reads those. Knows no sounds.

use super::calendar::{clock_and_calendar, named_days};
use super::figures::{amounts, continental, figures, longest_first};
use super::numerals::{ordinal, roman};
use super::rewrite::Rule;
use super::words::{ABBREVIATIONS, COUNTED, ORDERED, RELATIONS, SYMBOLS, TITLES};

const ROMAN: &str = r"(M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}))";

/// The rules, compiled.
#[derive(Debug, Clone)]
pub struct Normaliser {
    rules: Vec<Rule>,
}

impl Normaliser {
    /// Compiles the rules.
    ///
    /// # Errors
    /// A pattern is faulty.
    pub fn new() -> Result<Self, regex::Error> {
        let mut rules = continental()?;
        rules.extend(clock_and_calendar()?);
        rules.extend(amounts()?);
        rules.extend(named_days()?);
        rules.extend(abbreviations()?);
        rules.extend(figures()?);
        Ok(Self { rules })
    }

    /// `text` in words, on one line, single spaces, none before punctuation.
    pub fn normalise(&self, text: &str) -> String {
        let straight = text.replace(['’', '‘'], "'").replace('‒', "-").replace('―', "—");
        let straight = straight.split_whitespace().collect::<Vec<_>>().join(" ");
        let words = self.rules.iter().fold(straight, |text, rule| rule.apply(&text));
        tidy_spaces(&symbols_in_words(&words))
    }
}

fn abbreviations() -> Result<Vec<Rule>, regex::Error> {
    let titles = TITLES.iter().map(|(title, _)| regex::escape(title)).collect();
    let others = ABBREVIATIONS.iter().map(|(short, _)| regex::escape(short)).collect();
    Ok(vec![
        Rule::new(&format!(r"\b({})\.? (\p{{Lu}})", longest_first(titles)), |found| {
            let (_, spoken) = TITLES.iter().find(|(title, _)| *title == found.group(1))?;
            Some(format!("{spoken} {}", found.group(2)))
        })?,
        Rule::new(&format!(r"({})", longest_first(others)), |found| {
            let (short, spoken) = ABBREVIATIONS.iter().find(|(short, _)| *short == found.group(1))?;
            let last = found.after.is_none() && short.ends_with('.');
            found.stands_alone(".").then(|| format!("{spoken}{}", if last { "." } else { "" }))
        })?,
        Rule::new(r"\b(No|Nos)\. ?(\d)", |found| {
            let noun = if found.group(1) == "No" { "Number" } else { "Numbers" };
            Some(format!("{noun} {}", found.group(2)))
        })?,
        Rule::new(r"#(\d)", |found| {
            let apart = !found.before.is_some_and(|c| c.is_alphanumeric() || c == '&');
            apart.then(|| format!("number {}", found.group(1)))
        })?,
        Rule::new(&format!(r"\b({}) {ROMAN}\b", COUNTED.join("|")), |found| {
            Some(format!("{} {}", found.group(1), roman(found)?))
        })?,
        Rule::new(&format!(r"\b({}) {ROMAN}\b", ORDERED.join("|")), |found| {
            Some(format!("{} the {}", found.group(1), ordinal(roman(found)?)))
        })?,
    ])
}

fn symbols_in_words(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let between = !out.trim_end().is_empty() && rest.peek().is_some();
        let relation = RELATIONS.iter().find(|(symbol, _)| *symbol == c && between);
        match relation.or_else(|| SYMBOLS.iter().find(|(symbol, _)| *symbol == c)) {
            Some((_, reading)) => out.extend([" ", reading, " "]),
            None => out.push(c),
        }
    }
    out
}

fn tidy_spaces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        let clings =
            word.starts_with([',', '.', ';', ':', '!', '?']) && !word.ends_with(|c: char| c.is_numeric());
        if !out.is_empty() && !clings {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(written: &str, expected: &str) {
        assert_eq!(Normaliser::new().unwrap().normalise(written), expected, "{written}");
    }

    #[test]
    fn times() {
        check("at 7:30 pm.", "at seven thirty P.M.");
        check("at 7:30 p.m. today", "at seven thirty P.M. today");
        check("from 12:05 to 14:00:09", "from twelve oh five to fourteen and nine seconds");
        check("9:00 sharp, 25:10 never", "nine o'clock sharp, 25:10 never");
        check("by 5pm and 10 AM", "by five P.M. and ten A.M.");
        check("7:30 amber lights", "seven thirty amber lights");
    }

    #[test]
    fn dates() {
        check("on 2024-03-05", "on March fifth, 2024");
        check("on 3/12/99 and 25/12/2023", "on March twelfth, 1999 and December twenty-fifth, 2023");
        check("Jan. 3, 2020", "January third, 2020");
        check("the 21 of June, 4 Aug.", "the twenty-first of June, the fourth of August");
        check("May 32", "May 32");
        check("2024-13-05", "2024-13-05");
    }

    #[test]
    fn money_and_units() {
        check("$3.5 million or €2bn", "3.5 million dollars or 2 billion euros");
        check("$5k, ¥500, Rs. 1, 50¢", "5 thousand dollars, 500 yen, 1 rupee, 50 cents");
        check(
            "5 km, 1 kg, -3°C, 98.6 °F",
            "5 kilometers, 1 kilogram, minus 3 degrees Celsius, 98.6 degrees Fahrenheit",
        );
        check("60 mph at 2.4GHz", "60 miles per hour at 2.4 gigahertz");
        check("$9.99 and 50%", "$9.99 and 50 percent");
        // Groups parted by dots, apostrophes or spaces, and a decimal comma.
        check("€1.100,50 or 1.100,50 €", "€1,100.50 or €1,100.50");
        check("€1.100, 1.234.567,5 and €12,50.", "€1,100, 1,234,567.5 and €12.50.");
        check("EUR 2.500,00 for 3,5 % or 4,5 km", "2,500.00 euros for 3.5 percent or 4.5 kilometers");
        check("CHF 1'100.50 and 1 100,50 €", "CHF 1,100.50 and €1,100.50");
        check("1 234 567,89 of 10,000 or 3.141", "1,234,567.89 of 10,000 or 3.141");
        check("5 € and 9.99$ each", "€5 and $9.99 each");
        check("€2,5 million, 2,5 Mio", "2.5 million euros, 2,5 Mio");
        check("see 1.2.3, 192.168.100.200 and 1,100", "see 1.2.3, 192.168.100.200 and 1,100");
    }

    #[test]
    fn abbreviations_and_titles() {
        check("Dr. Smith of St. Paul St.", "Dr Smith of Saint Paul Street.");
        check("approx. five vs. six Sept. 5", "approximately five versus six September fifth");
        check("No. 5, #1, Best. No.", "Number 5, number 1, Best. No.");
        check("Chapter IV of Henry VIII", "Chapter 4 of Henry the eighth");
        check("World War II, Part X", "World War 2, Part 10");
    }

    #[test]
    fn figures_and_symbols() {
        check("call 555-123-4567", "call 5 5 5, 1 2 3, 4 5 6 7");
        check("call (555) 123-4567", "call 5 5 5, 1 2 3, 4 5 6 7");
        check("pages 10-20.", "pages 10 to 20.");
        check("1/2 and 3/4 of 11/12", "one half and 3 quarters of November twelfth");
        check("2 + 2 = 4, a ± b", "2 + 2 equals 4, a plus or minus b");
        check("the 1990s and '80s", "the 19 nineties and eighties");
        check("-40 and .5, 5-year-old COVID-19 C#", "minus 40 and point 5, 5 year-old COVID 19 C sharp");
        check("H264 10x 2nd-best 6'2\" 24/7", "H264 10 x 2nd best 6 foot 2 24 7");
        check("12345678901234567890", "1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0");
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in any::<String>(), seed in "[0-9:/.,$£%a-zA-Z °#+~=<>-]{0,80}") {
            let normaliser = Normaliser::new().unwrap();
            normaliser.normalise(&text);
            let once = normaliser.normalise(&seed);
            prop_assert!(!once.contains("  "));
        }
    }
}
