// SPDX-License-Identifier: MIT OR Apache-2.0

//! The view of `ulp top` in a terminal.

use super::{Column, Reading, Table, Top, TopArgs};
use crate::output::{self, interrupts};
use anyhow::{Context, Result};
use clap::ValueEnum;
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::{Attribute, Print, SetAttribute};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};
use std::io::{stdout, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The longest wait for a key, after which signals are looked at.
const TICK: Duration = Duration::from_millis(100);

/// What the keys change.
struct View {
    column: Column,
    reverse: bool,
    filter: String,
    /// Whether keys are typed into the filter.
    typing: bool,
    paused: bool,
    /// The first queue pair that is shown.
    first: usize,
}

impl View {
    /// Handles a key. Returns whether the view ends.
    fn key(&mut self, key: KeyEvent) -> bool {
        let is_interrupt =
            key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
        if is_interrupt {
            return true;
        }
        if self.typing {
            match key.code {
                KeyCode::Enter => self.typing = false,
                KeyCode::Esc => {
                    self.typing = false;
                    self.filter.clear();
                }
                KeyCode::Backspace => {
                    self.filter.pop();
                }
                KeyCode::Char(letter) => self.filter.push(letter),
                _ => {}
            }
            return false;
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('s') => self.column = self.next_column(),
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('p') => self.paused = !self.paused,
            KeyCode::Char('/') => {
                self.typing = true;
                self.filter.clear();
            }
            KeyCode::Down => self.first = self.first.saturating_add(1),
            KeyCode::Up => self.first = self.first.saturating_sub(1),
            _ => {}
        }
        false
    }

    fn next_column(&self) -> Column {
        let columns = Column::value_variants();
        let mut from = columns.iter().skip_while(|column| **column != self.column);
        from.nth(1)
            .or(columns.first())
            .copied()
            .unwrap_or(self.column)
    }

    /// Returns the first line: what is shown, and the keys.
    fn status(&self) -> String {
        let column = self.column.to_possible_value();
        let column = column.as_ref().map_or("", |value| value.get_name());
        let order = if self.reverse { ", reversed" } else { "" };
        let paused = if self.paused { ", paused" } else { "" };
        let filter = match (self.typing, self.filter.is_empty()) {
            (true, _) => format!("filter: {}_", self.filter),
            (false, true) => "/ filter".to_owned(),
            (false, false) => format!("filter: {} (/ another)", self.filter),
        };
        format!("sorted by {column}{order}{paused}   {filter}   s sort  r reverse  p pause  q quit")
    }
}

/// A line of the screen: whether it is a head, and its text.
type Line = (bool, String);

/// Appends a table: its title, its head, and as many of its rows as `height` lines have room for.
/// Each column is as wide as its longest cell.
fn add_table(lines: &mut Vec<Line>, (title, head, rows): &Table, first: usize, height: usize) {
    let rule = (false, format!("{title:─<500}"));
    let table = output::padded_table((0, 1), usize::MAX, head, rows.iter().skip(first).cloned());
    let texts = table.lines().enumerate();
    let texts = texts.map(|(number, text)| (number == 0, text.to_owned()));
    lines.extend(std::iter::once(rule).chain(texts).take(height));
}

/// Returns the lines of a screen of `height` lines. The queue pairs have what the other tables leave
/// them, and three lines at least.
fn lines(view: &mut View, top: &Top, height: usize) -> Vec<Line> {
    let [devices, queue_pairs, files] = top.tables();
    view.first = view.first.min(queue_pairs.2.len().saturating_sub(1));
    let mut lines = vec![(false, view.status())];
    let left = height.saturating_sub(1 + 3);
    let above = left.min(devices.2.len() + 2);
    let below = (left - above).min(files.2.len() + 2);
    add_table(&mut lines, &devices, 0, above);
    add_table(
        &mut lines,
        &queue_pairs,
        view.first,
        3 + left - above - below,
    );
    // The files are at the bottom.
    lines.resize(height.saturating_sub(below), (false, String::new()));
    add_table(&mut lines, &files, 0, below);
    lines
}

/// The screen of a terminal, which is as before when this is dropped.
struct Screen {
    /// What is on it.
    lines: Vec<Line>,
    size: (u16, u16),
}

impl Screen {
    fn new() -> std::io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self {
            lines: Vec::new(),
            size: (0, 0),
        };
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Prints the lines that have changed, each cut or filled up to the width of the terminal.
    fn draw(&mut self, view: &mut View, top: &Top) -> std::io::Result<()> {
        let (mut out, size) = (stdout().lock(), terminal::size()?);
        if size != self.size {
            queue!(out, Clear(ClearType::All))?;
            self.lines.clear();
            self.size = size;
        }
        let (width, height) = (usize::from(size.0), usize::from(size.1));
        let lines = lines(view, top, height);
        for (row, line) in (0..size.1).zip(&lines) {
            if self.lines.get(usize::from(row)) == Some(line) {
                continue;
            }
            let (is_head, text) = line;
            let attribute = match is_head {
                true => Attribute::Bold,
                false => Attribute::Reset,
            };
            let text: String = text.chars().take(width).collect();
            let text = format!("{text:width$}");
            queue!(out, MoveTo(0, row), SetAttribute(attribute), Print(text))?;
        }
        self.lines = lines;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing can be told to a terminal that is gone.
        let _ = execute!(
            stdout(),
            SetAttribute(Attribute::Reset),
            LeaveAlternateScreen,
            Show
        );
        let _ = terminal::disable_raw_mode();
    }
}

/// Shows the view until a key or a signal ends it.
pub fn run(args: &TopArgs) -> Result<ExitCode> {
    let stop = interrupts()?;
    let mut view = View {
        column: args.sort,
        reverse: false,
        filter: args.text.clone(),
        typing: false,
        paused: false,
        first: 0,
    };
    let mut last = Reading::new(&args.filter)?;
    let mut now = Reading::new(&args.filter)?;
    let mut screen = Screen::new().context("preparing the terminal")?;
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() >= next {
            next = Instant::now() + args.interval;
            if !view.paused {
                let read = Reading::new(&args.filter)?;
                last = std::mem::replace(&mut now, read);
            }
        }
        let mut top = Top::new(&last, &now);
        top.arrange(&view.filter, view.column, view.reverse);
        screen.draw(&mut view, &top)?;
        if !event::poll(TICK.min(next.saturating_duration_since(Instant::now())))? {
            continue;
        }
        if let Event::Key(key) = event::read()? {
            if key.kind == KeyEventKind::Press && view.key(key) {
                break;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(view: &mut View, text: &str) -> bool {
        let mut ends = false;
        for letter in text.chars() {
            let code = match letter {
                '\n' => KeyCode::Enter,
                letter => KeyCode::Char(letter),
            };
            ends = view.key(KeyEvent::new(code, KeyModifiers::NONE));
        }
        ends
    }

    #[test]
    fn keys_sort_filter_and_end() {
        let mut view = View {
            column: Column::Program,
            reverse: false,
            filter: String::new(),
            typing: false,
            paused: false,
            first: 0,
        };
        assert!(!press(&mut view, "s"));
        assert_eq!(view.column, Column::Device, "the first follows the last");
        assert!(!press(&mut view, "/quit\n"));
        assert_eq!(view.filter, "quit");
        assert!(!press(&mut view, "rp"));
        assert!(view.reverse && view.paused);
        assert!(press(&mut view, "q"));
    }

    #[test]
    fn columns_have_their_longest_cells_and_tables_their_room() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = vec![
            row(["rxe0", "x"]),
            row(["r", "y"]),
            row(["long\x1bname", "z"]),
        ];
        let table: Table = ("Title", &["DEVICE", "QPN"], rows);
        let drawn = |first, height| {
            let mut lines = Vec::new();
            add_table(&mut lines, &table, first, height);
            lines
        };
        let all = drawn(0, 9);
        assert!(all[0].1.starts_with("Title─"), "{}", all[0].1);
        let text = |line: &Line| (line.0, line.1.trim_end().to_owned());
        let head = |text: &str| (true, text.to_owned());
        let plain = |text: &str| (false, text.to_owned());
        let want = [
            head("DEVICE    QPN"),
            plain("rxe0      x"),
            plain("r         y"),
            plain("long?name z"),
        ];
        assert_eq!(all[1..].iter().map(text).collect::<Vec<_>>(), want);
        let few = drawn(1, 3);
        assert_eq!(few.len(), 3);
        assert_eq!(text(&few[2]), plain("r         y"));
    }

    #[test]
    fn a_screen_has_as_many_lines_as_the_terminal() {
        let top = Top {
            interval_s: 1.0,
            devices: Vec::new(),
            queue_pairs: Vec::new(),
            files: Vec::new(),
        };
        for height in [0, 1, 4, 7, 40] {
            let mut view = View {
                column: Column::Bytes,
                reverse: false,
                filter: String::new(),
                typing: false,
                paused: false,
                first: 9,
            };
            let lines = lines(&mut view, &top, height);
            assert!(lines.len() <= height.max(4), "{height}: {}", lines.len());
            assert_eq!(view.first, 0);
        }
    }
}
