//! Numbers as digits, with signs for money and percent.

/// Stands where punctuation kept two numbers apart; never a word.
pub(super) const BREAK: &str = "\u{1}";
/// Stands for `o'clock`: the number before it is a full hour.
pub(super) const OCLOCK: &str = "\u{2}";

const ONES: [&str; 20] = [
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
const TENS: [&str; 10] =
    ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"];
const ORDINAL_ONES: [&str; 20] = [
    "zeroth",
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
    "fourteenth",
    "fifteenth",
    "sixteenth",
    "seventeenth",
    "eighteenth",
    "nineteenth",
];
const ORDINAL_TENS: [&str; 10] = [
    "",
    "",
    "twentieth",
    "thirtieth",
    "fortieth",
    "fiftieth",
    "sixtieth",
    "seventieth",
    "eightieth",
    "ninetieth",
];
const SCALES: [(&str, u64); 4] = [
    ("thousand", 1_000),
    ("million", 1_000_000),
    ("billion", 1_000_000_000),
    ("trillion", 1_000_000_000_000),
];
const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
/// A currency's sign and the words for its whole and its hundredth.
const MONEY: [(&str, [&str; 2], [&str; 2]); 3] = [
    ("$", ["dollar", "dollars"], ["cent", "cents"]),
    ("£", ["pound", "pounds"], ["penny", "pence"]),
    ("€", ["euro", "euros"], ["cent", "cents"]),
];
/// Units as they are written after a number.
const UNITS: [(&str, &str); 19] = [
    ("km", "kilometers"),
    ("m", "meters"),
    ("cm", "centimeters"),
    ("mm", "millimeters"),
    ("kg", "kilograms"),
    ("g", "grams"),
    ("mg", "milligrams"),
    ("l", "liters"),
    ("ml", "milliliters"),
    ("lb", "pounds"),
    ("lbs", "pounds"),
    ("oz", "ounces"),
    ("ft", "feet"),
    ("mi", "miles"),
    ("mph", "miles per hour"),
    ("min", "minutes"),
    ("hz", "hertz"),
    ("gb", "gigabytes"),
    ("mb", "megabytes"),
];

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// Digits, with a fraction or without.
fn is_figure(text: &str) -> bool {
    match text.split_once('.') {
        Some((whole, fraction)) => is_digits(whole) && is_digits(fraction),
        None => is_digits(text),
    }
}

/// The words of a piece with digits in it: `$12.50`, `25%`, `7:30pm`, `21st`, `5km`, `-3°c`. None for other pieces.
pub(super) fn take_apart(piece: &str) -> Option<Vec<String>> {
    if let Some((sign, rest)) = piece.char_indices().nth(1).map(|(at, _)| piece.split_at(at))
        && MONEY.iter().any(|(known, ..)| *known == sign)
    {
        return Some([vec![sign.to_owned()], take_apart(rest)?].concat());
    }
    let end = piece.find(|c: char| !(c.is_ascii_digit() || ".,:".contains(c))).unwrap_or(piece.len());
    let (digits, after) = piece.split_at(end);
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let mut words = vec![match digits.split_once(':') {
        Some((hour, minute)) if is_digits(hour) && is_digits(minute) && minute.len() == 2 => {
            let hour = hour.trim_start_matches('0');
            if minute == "00" { hour.to_owned() } else { format!("{hour}{minute}") }
        }
        _ => digits.replace([',', ':'], ""),
    }];
    match after {
        "" => {}
        "st" | "nd" | "rd" | "th" | "s" => words[0].push_str(after),
        "%" => words.push("percent".to_owned()),
        "¢" => words.push("cents".to_owned()),
        "°" => words.push("degrees".to_owned()),
        "°c" => words.extend(["degrees", "celsius"].map(str::to_owned)),
        "°f" => words.extend(["degrees", "fahrenheit"].map(str::to_owned)),
        other => words.extend(
            other.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty()).map(str::to_owned),
        ),
    }
    Some(words)
}

/// A number at the beginning of some words.
struct Found {
    text: String,
    words: usize,
}

/// Replaces spelled numbers by digits.
pub(super) fn to_digits(words: &[String]) -> Vec<String> {
    let mut out = Vec::with_capacity(words.len());
    let mut at = 0;
    while at < words.len() {
        let rest: Vec<&str> = words[at..].iter().map(String::as_str).collect();
        match number(&rest) {
            Some(found) => {
                out.push(found.text);
                at += found.words;
            }
            None => {
                out.push(words[at].clone());
                at += 1;
            }
        }
    }
    out
}

/// The longest number that the words begin with.
fn number(words: &[&str]) -> Option<Found> {
    if let Some(found) = digit_run(words).or_else(|| pair(words)) {
        return Some(found);
    }
    let mut found = cardinal(words)?;
    let rest = &words[found.words..];
    if let ["point", decimals @ ..] = rest
        && !found.text.contains('.')
        && let Some((digits, count)) = decimals_of(decimals)
    {
        found = Found { text: format!("{}.{digits}", found.text), words: found.words + 1 + count };
        let scaled = scale(words.get(found.words).copied()).and_then(|by| multiplied(&found.text, by));
        if let Some(text) = scaled {
            found = Found { text, words: found.words + 1 };
        }
    } else if let ["and", "a", "half", ..] = rest
        && is_digits(&found.text)
    {
        found = Found { text: format!("{}.5", found.text), words: found.words + 3 };
    }
    Some(found)
}

/// `five five five`: two and more single digits in words make one number.
fn digit_run(words: &[&str]) -> Option<Found> {
    let digit = |word: &&str| match *word {
        "oh" => Some(0),
        word => ONES[..10].iter().position(|known| *known == word),
    };
    let digits: Vec<usize> = words.iter().map_while(digit).collect();
    let follows = words.get(digits.len()).copied();
    let is_part = follows == Some("hundred") || follows == Some("point") || scale(follows).is_some();
    let is_run = digits.len() > 1 && words[0] != "oh" && words[digits.len() - 1] != "oh" && !is_part;
    is_run.then(|| Found { text: digits.iter().map(ToString::to_string).collect(), words: digits.len() })
}

/// `nineteen eighty-four`, `twenty twenty`, `seven thirty`, `nineteen oh five`: years and times.
fn pair(words: &[&str]) -> Option<Found> {
    let (first, used) = small(words).filter(|(value, _)| *value > 0)?;
    let rest = &words[used..];
    let (second, more) = match rest {
        ["oh", digit, ..] => (ONES[1..10].iter().position(|known| known == digit)? as u64 + 1, 2),
        _ => small(rest).filter(|(value, _)| *value > 9)?,
    };
    let follows = words.get(used + more).copied();
    if follows == Some("hundred") || scale(follows).is_some() {
        return None;
    }
    Some(Found { text: format!("{first}{second:02}"), words: used + more })
}

/// A number below a hundred in words, and how many they are.
fn small(words: &[&str]) -> Option<(u64, usize)> {
    let first = words.first()?;
    if let Some(value) = ONES.iter().position(|known| known == first) {
        return Some((value as u64, 1));
    }
    let tens = TENS.iter().position(|known| !known.is_empty() && known == first)? as u64 * 10;
    let ones = words.get(1).and_then(|next| ONES[1..10].iter().position(|known| known == next));
    Some(ones.map_or((tens, 1), |ones| (tens + ones as u64 + 1, 2)))
}

/// An ordinal below a hundred in words, and how many they are.
fn small_ordinal(words: &[&str]) -> Option<(u64, usize)> {
    let first = words.first()?;
    let ones = |word: &str| ORDINAL_ONES.iter().position(|known| *known == word).map(|value| value as u64);
    if let Some(value) = ones(first) {
        return Some((value, 1));
    }
    if let Some(tens) = ORDINAL_TENS.iter().position(|known| !known.is_empty() && known == first) {
        return Some((tens as u64 * 10, 1));
    }
    let tens = TENS.iter().position(|known| !known.is_empty() && known == first)? as u64 * 10;
    let last = words.get(1).and_then(|word| ones(word)).filter(|value| (1..10).contains(value))?;
    Some((tens + last, 2))
}

fn scale(word: Option<&str>) -> Option<u64> {
    SCALES.iter().find(|(name, _)| Some(*name) == word).map(|(_, value)| *value)
}

/// Parts from thousands down: `two hundred thousand and five`, `3 million`, `twenty first`.
fn cardinal(words: &[&str]) -> Option<Found> {
    let (mut total, mut limit, mut used) = (0_u64, u64::MAX, 0);
    loop {
        let skipped = usize::from(used > 0 && words.get(used) == Some(&"and"));
        let rest = words.get(used + skipped..).unwrap_or_default();
        if let Some((value, count)) = small_ordinal(rest).filter(|(value, _)| *value < limit) {
            return Some(Found { text: ordinal(total.saturating_add(value)), words: used + skipped + count });
        }
        let Some((text, count)) = below_thousand(rest) else { break };
        let by = scale(rest.get(count).copied());
        let fits = by.unwrap_or(1) < limit && (used == 0 || is_digits(&text));
        if !fits {
            break;
        }
        let Some(by) = by else {
            if let Some((value, more)) = after_hundreds(&rest[..count], &rest[count..])
                && let Ok(hundreds) = text.parse::<u64>()
            {
                let words = used + skipped + count + more;
                return Some(Found { text: ordinal(total.saturating_add(hundreds + value)), words });
            }
            if used == 0 {
                return Some(Found { text, words: count });
            }
            match text.parse::<u64>() {
                Ok(value) if value < limit => {
                    (total, used) = (total.saturating_add(value), used + skipped + count);
                }
                _ => {}
            }
            break;
        };
        let Some(value) = multiplied(&text, by).and_then(|text| text.parse::<u64>().ok()) else { break };
        (total, limit, used) = (total.saturating_add(value), by, used + skipped + count + 1);
    }
    (used > 0).then(|| Found { text: total.to_string(), words: used })
}

/// The ordinal that ends a number like `one hundred and twelfth`, and how many words it has.
fn after_hundreds(taken: &[&str], rest: &[&str]) -> Option<(u64, usize)> {
    if taken.last() != Some(&"hundred") {
        return None;
    }
    let skipped = usize::from(rest.first() == Some(&"and"));
    small_ordinal(rest.get(skipped..)?).map(|(value, count)| (value, skipped + count))
}

/// Up to 999 in words, or figures as they are; `a` counts as one before hundred and the scales.
fn below_thousand(words: &[&str]) -> Option<(String, usize)> {
    let first = *words.first()?;
    if is_figure(first) {
        return Some((first.to_owned(), 1));
    }
    let next = words.get(1).copied();
    let (value, used) = match first {
        "a" if next == Some("hundred") || scale(next).is_some() => (1, 1),
        _ => small(words)?,
    };
    if words.get(used) != Some(&"hundred") {
        return Some((value.to_string(), used));
    }
    let hundreds = value * 100;
    let used = used + 1;
    let skipped = usize::from(words.get(used) == Some(&"and"));
    match small(words.get(used + skipped..).unwrap_or_default()).filter(|(value, _)| *value > 0) {
        Some((value, count)) => Some(((hundreds + value).to_string(), used + skipped + count)),
        None => Some((hundreds.to_string(), used)),
    }
}

/// A figure times a scale, where that is whole: `3.5` million is 3500000.
fn multiplied(figure: &str, by: u64) -> Option<String> {
    let (whole, fraction) = figure.split_once('.').unwrap_or((figure, ""));
    let zeros = by.ilog10() as usize;
    if fraction.len() > zeros {
        return None;
    }
    let text = format!("{whole}{fraction}{}", "0".repeat(zeros - fraction.len()));
    text.parse::<u64>().ok().map(|value| value.to_string())
}

/// The decimals after `point`, and how many words they were.
fn decimals_of(words: &[&str]) -> Option<(String, usize)> {
    let digit = |word: &&str| ONES[..10].iter().position(|known| known == word);
    let digits: String = words.iter().map_while(digit).map(|digit| digit.to_string()).collect();
    if !digits.is_empty() {
        let count = digits.len();
        return Some((digits, count));
    }
    if words.first().is_some_and(|word| is_digits(word)) {
        return Some((words[0].to_owned(), 1));
    }
    small(words).map(|(value, count)| (value.to_string(), count))
}

fn ordinal(value: u64) -> String {
    let ending = match (value % 100, value % 10) {
        (11..=13, _) => "th",
        (_, 1) => "st",
        (_, 2) => "nd",
        (_, 3) => "rd",
        _ => "th",
    };
    format!("{value}{ending}")
}

/// Joins numbers with what stands alongside them: money, percent, units, hours, days of a month.
pub(super) fn with_signs(words: &[String]) -> Vec<String> {
    let mut out: Vec<String> = Vec::with_capacity(words.len());
    let mut at = 0;
    while at < words.len() {
        let rest: Vec<&str> = words[at..].iter().map(String::as_str).collect();
        let (text, used) = money(&rest).unwrap_or_else(|| beside(&rest, out.last().map(String::as_str)));
        out.extend(text.split_whitespace().map(str::to_owned));
        at += used;
    }
    out
}

/// `$12.50` from `$ 12.50`, `12 dollars and 50 cents`, `12 dollars`; `¢50` from `50 cents`.
fn money(words: &[&str]) -> Option<(String, usize)> {
    for (sign, whole, hundredth) in MONEY {
        let (figure, used) = match words {
            [first, figure, ..] if *first == sign && is_figure(figure) => (*figure, 2),
            [figure, unit, ..] if is_figure(figure) && whole.contains(unit) => (*figure, 2),
            _ => continue,
        };
        let figure = figure.strip_suffix(".00").unwrap_or(figure);
        let skipped = usize::from(words.get(used) == Some(&"and"));
        if let Some([cents, unit, ..]) = words.get(used + skipped..)
            && hundredth.contains(unit)
            && is_digits(cents)
            && cents.len() < 3
            && is_digits(figure)
        {
            return Some((format!("{sign}{figure}.{cents:0>2}"), used + skipped + 2));
        }
        return Some((format!("{sign}{figure}"), used));
    }
    match words {
        [figure, "cent" | "cents", ..] if is_digits(figure) => Some((format!("¢{figure}"), 2)),
        _ => None,
    }
}

/// The first word, with the one after it where both make one; `before` is the word before.
fn beside(words: &[&str], before: Option<&str>) -> (String, usize) {
    let first = words[0];
    if first == OCLOCK {
        return (String::new(), 1);
    }
    if let Some(day) = ["st", "nd", "rd", "th"].iter().find_map(|ending| first.strip_suffix(ending))
        && is_digits(day)
        && before.is_some_and(|before| MONTHS.contains(&before))
    {
        return (day.to_owned(), 1);
    }
    if !is_figure(first) {
        return (first.to_owned(), 1);
    }
    match words[1..] {
        // `7.30 pm`, as the British write a time.
        ["am" | "pm", ..] if first.split_once('.').is_some_and(|(_, minutes)| minutes.len() == 2) => {
            (first.replace(".00", "").replace('.', ""), 1)
        }
        ["percent", ..] => (format!("{first}%"), 2),
        ["per", "cent", ..] => (format!("{first}%"), 3),
        [unit, ..] => match UNITS.iter().find(|(short, _)| *short == unit) {
            Some((_, long)) => (format!("{first} {long}"), 2),
            None => (first.to_owned(), 1),
        },
        [] => (first.to_owned(), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::super::normalise;

    #[track_caller]
    fn check(spellings: &[&str], expected: &str) {
        for text in spellings {
            assert_eq!(normalise(text).join(" "), expected, "{text}");
        }
    }

    #[test]
    fn cardinals_are_digits() {
        check(&["seven", "7"], "7");
        check(&["forty-two", "forty two", "42"], "42");
        check(&["one hundred and five", "a hundred five", "105"], "105");
        check(&["three thousand four hundred", "3,400", "3400"], "3400");
        check(&["two million, they say", "2,000,000 they say"], "2000000 they say");
        check(&["three point five million", "3.5 million"], "3500000");
        check(&["three point one four", "3.14"], "3.14");
        check(&["two and a half hours", "2.5 hours"], "2.5 hours");
        check(&["one thousand two hundred thirty four"], "1234");
        check(&["zero"], "0");
    }

    #[test]
    fn punctuation_keeps_numbers_apart() {
        check(&["one, two, three", "1, 2, 3"], "1 2 3");
        check(&["five five five, zero one two three", "555-0123"], "555 0123");
        check(&["twenty, thirty"], "20 30");
    }

    #[test]
    fn ordinals_have_endings() {
        check(&["the first", "the 1st"], "the 1st");
        check(&["twenty-first century", "21st century"], "21st century");
        check(&["one hundred and twelfth", "112th"], "112th");
        check(&["May third", "May 3rd", "May 3"], "may 3");
        check(&["the third of May"], "the 3rd of may");
    }

    #[test]
    fn years_and_times_are_pairs() {
        check(&["nineteen eighty-four", "1984"], "1984");
        check(&["nineteen oh five", "1905"], "1905");
        check(&["twenty twenty four", "two thousand twenty four", "2024"], "2024");
        check(&["seven thirty p.m.", "7:30 PM", "7:30pm", "7.30 pm"], "730 pm");
        check(&["at 7.00 am", "at seven a.m."], "at 7 am");
        check(&["seven o'clock", "7:00", "seven"], "7");
        check(&["twelve oh five", "12:05"], "1205");
        check(&["the 1990s"], "the 1990s");
    }

    #[test]
    fn money_and_percent_carry_their_sign() {
        check(&["twelve dollars and fifty cents", "$12.50", "12 dollars 50 cents"], "$12.50");
        check(&["three million dollars", "$3 million", "$3,000,000"], "$3000000");
        check(&["five dollars", "$5", "$5.00"], "$5");
        check(&["fifty cents", "50¢"], "¢50");
        check(&["twenty pounds", "£20"], "£20");
        check(&["twenty-five percent", "25%", "25 per cent"], "25%");
        check(&["three point five percent", "3.5%"], "3.5%");
    }

    #[test]
    fn units_are_written_out() {
        check(&["five km", "5 km", "5km", "five kilometres"], "5 kilometers");
        check(&["20°C", "twenty degrees Celsius"], "20 degrees celsius");
        check(&["-3 degrees", "minus three degrees"], "minus 3 degrees");
    }

    #[test]
    fn words_that_only_look_like_numbers_stay() {
        check(&["oh no", "Oh, no!"], "oh no");
        check(&["I am and you are"], "i am and you are");
        check(&["hundreds of thousands"], "hundreds of thousands");
        check(&["point taken"], "point taken");
    }
}
