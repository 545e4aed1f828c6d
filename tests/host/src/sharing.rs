// SPDX-License-Identifier: GPL-2.0

//! References that requests share, against one reference for each request.

use crate::logic::order::{Link, Order};
use crate::logic::sharing::{heir, holder, Share, MAX_RUN};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// Posts a run of so many requests, of which those at these places have a reference, and the last.
    Run(usize, Vec<usize>),
    /// Posts a request of no command.
    Other,
    /// Cancels the posted request of this rank.
    Cancel(usize),
    /// Completes so many of the oldest.
    Complete(usize),
    /// Takes back the newest of the last run, so many, and those before have what is left.
    TakeBack(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1usize..6, prop::collection::vec(0usize..6, 0..2)).prop_map(|(n, own)| Step::Run(n, own)),
        1 => Just(Step::Other),
        5 => (0usize..16).prop_map(Step::Cancel),
        3 => (1usize..4).prop_map(Step::Complete),
        1 => (1usize..6).prop_map(Step::TakeBack),
    ]
}

/// A posted request: what it has, and of which run it is.
#[derive(Clone, Copy, Debug)]
struct Request {
    slot: u32,
    share: Share,
    /// The run, and the number of the request in it.
    run: Option<(usize, u32)>,
    /// The run and the number that the reference is for, if it has one.
    reference: Option<(usize, u32)>,
}

struct Model {
    order: Order<Vec<Link>>,
    posted: Vec<Request>,
    runs: usize,
}

impl Model {
    fn share(&self, slot: u32) -> Share {
        let found = self.posted.iter().find(|it| it.slot == slot);
        found.map_or(Share::None, |it| it.share)
    }

    fn rank(&self, slot: u32) -> usize {
        self.posted.iter().position(|it| it.slot == slot).unwrap()
    }

    fn push(&mut self, share: Share, run: Option<(usize, u32)>) {
        if let Some(slot) = self.order.push(1) {
            let reference = run.filter(|_| share == Share::Own);
            self.posted.push(Request {
                slot,
                share,
                run,
                reference,
            });
        }
    }

    /// Cancels a request, as the queue does. Returns the run and the number that it is told with.
    fn cancel(&mut self, rank: usize) -> Option<(usize, u32)> {
        let it = self.posted[rank];
        let found = holder(&self.order, it.slot, |at| self.share(at));
        let told = match it.share {
            Share::Own => it.reference,
            Share::Next => found.map(|(slot, places)| {
                let (run, number) = self.posted[self.rank(slot)].reference.unwrap();
                (run, number - places)
            }),
            Share::None | Share::Canceled => None,
        };
        if it.share == Share::Own {
            if let Some((slot, places)) = heir(&self.order, it.slot, |at| self.share(at)) {
                let (run, number) = it.reference.unwrap();
                let heir = self.rank(slot);
                self.posted[heir].reference = Some((run, number - places));
                self.posted[heir].share = Share::Own;
            }
        }
        self.posted[rank].share = Share::Canceled;
        self.posted[rank].reference = None;
        told
    }

    /// Each request that is not over has a reference to its run, or shares one; no other run has one.
    fn check(&self) {
        for it in &self.posted {
            let found = match it.share {
                Share::Own => it.reference,
                Share::Next => {
                    let (slot, places) = holder(&self.order, it.slot, |at| self.share(at)).unwrap();
                    let (run, number) = self.posted[self.rank(slot)].reference.unwrap();
                    Some((run, number - places))
                }
                Share::None | Share::Canceled => continue,
            };
            assert_eq!(found, it.run, "{:?}", self.posted);
        }
    }
}

proptest! {
    /// The command of a run has a reference as long as one of its requests needs it, and each request is
    /// told with its own run and number.
    #[test]
    fn a_request_is_told_with_its_own_run_and_number(
        depth in 1u32..24,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let order = Order::new(depth, Vec::new());
        let mut model = Model { order, posted: Vec::new(), runs: 0 };
        for step in steps {
            match step {
                Step::Run(count, own) => {
                    model.runs += 1;
                    let free = (depth - model.order.posted()) as usize;
                    let count = count.min(free);
                    for at in 0..count {
                        let has_one = at + 1 == count || own.contains(&at);
                        let share = if has_one { Share::Own } else { Share::Next };
                        model.push(share, Some((model.runs, at as u32)));
                    }
                }
                Step::Other => model.push(Share::None, None),
                Step::Cancel(rank) if rank < model.posted.len() => {
                    let it = model.posted[rank];
                    let want = it.run.filter(|_| matches!(it.share, Share::Own | Share::Next));
                    prop_assert_eq!(model.cancel(rank), want);
                }
                Step::Cancel(_) => (),
                Step::Complete(count) => {
                    let count = count.min(model.posted.len());
                    if let Some(last) = model.posted.get(count.wrapping_sub(1)) {
                        model.order.free_oldest(last.slot, count as u32);
                        model.posted.drain(..count);
                    }
                }
                Step::TakeBack(count) => {
                    let last = model.runs;
                    for _ in 0..count {
                        if model.posted.last().and_then(|it| it.run).map(|it| it.0) == Some(last) {
                            model.order.pop();
                            model.posted.pop();
                        }
                    }
                    // What is left of the run shares nothing any more, up to one with a reference.
                    for it in model.posted.iter_mut().rev() {
                        if it.run.map(|it| it.0) != Some(last) || it.share == Share::Own {
                            break;
                        }
                        if it.share == Share::Next {
                            it.share = Share::None;
                        }
                    }
                    model.runs += 1;
                }
            }
            model.check();
        }
    }
}

/// Neither looks further than a run is long.
#[test]
fn no_reference_is_looked_for_beyond_a_run() {
    let depth = 4 * MAX_RUN;
    let mut order = Order::new(depth, Vec::<Link>::new());
    let slots: Vec<_> = (0..depth).map(|_| order.push(1).unwrap()).collect();
    let (first, last) = (slots[0], slots[slots.len() - 1]);
    let only = |slot, share, other| move |at| if at == slot { share } else { other };
    assert_eq!(holder(&order, first, |_| Share::Next), None);
    assert_eq!(heir(&order, last, |_| Share::Canceled), None);
    let near = slots[MAX_RUN as usize - 1];
    let found = holder(&order, first, only(near, Share::Own, Share::Next));
    assert_eq!(found, Some((near, MAX_RUN - 1)));
    let far = slots[MAX_RUN as usize];
    assert_eq!(
        holder(&order, first, only(far, Share::Own, Share::Next)),
        None
    );
    assert_eq!(
        heir(&order, far, only(first, Share::Next, Share::Canceled)),
        None
    );
    let found = heir(&order, near, only(first, Share::Next, Share::Canceled));
    assert_eq!(found, Some((first, MAX_RUN - 1)));
}
