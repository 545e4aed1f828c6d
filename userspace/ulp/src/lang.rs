// SPDX-License-Identifier: MIT OR Apache-2.0

//! The language of explanations, and their texts by key.

use clap::{Args, ValueEnum};
use rust_ulp::Status;
use std::fmt::Display;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Lang {
    #[default]
    En,
    Zh,
}

/// The lines `KEY = TEXT` in English, and those in Chinese with the same keys.
pub type Texts = [&'static str; 2];

impl Lang {
    /// Returns the language that the variables of the environment ask for, in their order.
    fn of(mut variables: impl Iterator<Item = String>) -> Self {
        let first = variables.find(|value| !value.is_empty());
        match first.is_some_and(|value| value.starts_with("zh")) {
            true => Self::Zh,
            false => Self::En,
        }
    }

    /// Returns the text of a key; an empty one if there is none.
    pub fn text(self, texts: Texts, key: &str) -> &'static str {
        let [english, chinese] = texts;
        let texts = match self {
            Self::En => english,
            Self::Zh => chinese,
        };
        let mut lines = texts.lines().filter_map(|line| line.split_once(" = "));
        lines
            .find(|(name, _)| *name == key)
            .map_or("", |(_, text)| text)
    }

    /// Returns a text in this language: that of the line `ENGLISH = CHINESE` of `chinese`, or the
    /// English one if there is none.
    pub fn translate(self, chinese: &'static str, english: &'static str) -> &'static str {
        match self.text(["", chinese], english) {
            "" => english,
            text => text,
        }
    }

    /// Returns what the status of a completion means, and what to do.
    pub fn status(self, status: Status) -> &'static str {
        let texts = ["", include_str!("status.zh.txt")];
        match self.text(texts, &status.code().to_string()) {
            "" => status.explanation(),
            text => text,
        }
    }
}

/// Returns a text with the values in the places `{0}`, `{1}` and so on.
pub fn fill(text: &str, values: &[&dyn Display]) -> String {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let place = part.split_once('}');
        let value = place.and_then(|(place, _)| values.get(place.parse::<usize>().ok()?));
        match (place, value) {
            (Some((_, rest)), Some(value)) => filled.extend([&value.to_string(), rest]),
            _ => filled.extend(["{", part]),
        }
    }
    filled
}

/// The option `--lang`.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct LangArg {
    /// Language of the explanations [default: that of LANGUAGE, LC_ALL, LC_MESSAGES or
    /// LANG, whichever is set first]
    #[arg(long, value_enum)]
    lang: Option<Lang>,
}

impl LangArg {
    pub fn get(self) -> Lang {
        let names = ["LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"];
        let variables = names.iter().filter_map(|name| std::env::var(name).ok());
        self.lang.unwrap_or_else(|| Lang::of(variables))
    }
}

/// Checks that both languages have the same keys, each with a text, and returns them.
#[cfg(test)]
pub fn keys(texts: Texts) -> std::collections::BTreeSet<&'static str> {
    let [english, chinese] = texts.map(|text| {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines
            .map(|line| line.split_once(" = ").expect(line).0)
            .collect::<std::collections::BTreeSet<_>>()
    });
    assert_eq!(english, chinese);
    english
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_with_a_value_chooses_the_language() {
        for (values, want) in [
            (&["zh", "en_US.UTF-8"][..], Lang::Zh),
            (&["", "zh_CN.UTF-8"], Lang::Zh),
            (&["C.UTF-8", "zh_CN.UTF-8"], Lang::En),
            (&[], Lang::En),
        ] {
            let values_of = values.iter().map(|value| (*value).to_owned());
            assert_eq!(Lang::of(values_of), want, "{values:?}");
        }
    }

    #[test]
    fn each_status_has_a_text_in_chinese_unless_it_is_obsolete() {
        for code in (0..22).chain([256, 257]) {
            let status = Status::from_code(code);
            let (english, chinese) = (Lang::En.status(status), Lang::Zh.status(status));
            assert_eq!(english, status.explanation());
            let is_obsolete = english.starts_with("obsolete");
            assert_eq!(chinese == english, is_obsolete, "{code}");
        }
    }

    #[test]
    fn values_go_to_their_places_and_are_not_read_themselves() {
        for (text, want) in [
            ("{1} of {0}", "{0} of a"),
            ("{0}", "a"),
            ("no place", "no place"),
            ("{2} {x} {", "{2} {x} {"),
        ] {
            assert_eq!(fill(text, &[&"a", &"{0}"]), want);
        }
    }

    #[test]
    fn a_text_without_translation_stays_english() {
        let chinese = "a {0} = 甲 {0}";
        assert_eq!(Lang::Zh.translate(chinese, "a {0}"), "甲 {0}");
        assert_eq!(Lang::En.translate(chinese, "a {0}"), "a {0}");
        assert_eq!(Lang::Zh.translate(chinese, "b"), "b");
    }

    #[test]
    fn a_text_is_found_by_its_key_in_each_language() {
        let texts = ["# comment\na = one\nab = two = 2", "a = 一\nab = 二"];
        assert_eq!(Lang::En.text(texts, "ab"), "two = 2");
        assert_eq!(Lang::Zh.text(texts, "a"), "一");
        assert_eq!(Lang::En.text(texts, "b"), "");
    }
}
