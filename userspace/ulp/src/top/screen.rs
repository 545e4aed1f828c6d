// SPDX-License-Identifier: MIT OR Apache-2.0

//! The view of `ulp top` in a terminal.

use super::{Column, Reading, Top, TopArgs};
use crate::output::interrupts;
use anyhow::{Context, Result};
use clap::ValueEnum;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};
use ratatui::Frame;
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

/// Returns the width of each column: that of its longest cell.
fn widths(head: &[&str], rows: &[Vec<String>]) -> Vec<Constraint> {
    let longest = |column: usize, name: &str| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(name.len())
    };
    let widths = head.iter().enumerate().map(|(i, name)| longest(i, name));
    widths
        .map(|width| Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)))
        .collect()
}

fn draw_table(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    head: &[&'static str],
    rows: Vec<Vec<String>>,
) {
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let widths = widths(head, &rows);
    let table = Table::new(rows.into_iter().map(Row::new), widths)
        .header(Row::new(head.to_vec()).style(bold))
        .block(Block::new().borders(Borders::TOP).title(title.to_owned()));
    frame.render_widget(table, area);
}

fn draw(frame: &mut Frame<'_>, view: &mut View, top: &Top) {
    let [devices, queue_pairs, files] = top.tables();
    // Each table has a title and a head; the queue pairs have what is left.
    let height = |rows: usize| u16::try_from(rows.saturating_add(2)).unwrap_or(u16::MAX);
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Max(height(devices.2.len())),
        Constraint::Min(3),
        Constraint::Max(height(files.2.len())),
    ]);
    let [status, above, middle, below] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(Line::from(view.status())), status);
    view.first = view.first.min(queue_pairs.2.len().saturating_sub(1));
    for (area, (title, head, rows), first) in [
        (above, devices, 0),
        (middle, queue_pairs, view.first),
        (below, files, 0),
    ] {
        draw_table(
            frame,
            area,
            title,
            head,
            rows.into_iter().skip(first).collect(),
        );
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
    let mut terminal = ratatui::try_init().context("preparing the terminal")?;
    let mut show = || -> Result<()> {
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
            terminal.draw(|frame| draw(frame, &mut view, &top))?;
            if !event::poll(TICK.min(next.saturating_duration_since(Instant::now())))? {
                continue;
            }
            if let Event::Key(key) = event::read()? {
                if key.kind == KeyEventKind::Press && view.key(key) {
                    break;
                }
            }
        }
        Ok(())
    };
    let result = show();
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
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
}
