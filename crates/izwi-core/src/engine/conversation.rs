//! A conversation as it is carried from turn to turn: what was said, how much room it takes, and what of it is forgotten.
//!
//! Knows no engine: whoever converses keeps one, hands it over with each turn and enters the answer.

use super::executor::{Emission, Message, Turn};

/// Pieces that one turn of the user's may consist of; the oldest are forgotten.
const MAX_MESSAGES: usize = 8;

/// What a conversation may take of a model's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConversationLimits {
    /// The most answered turns that are remembered.
    pub turns: usize,
    /// The most positions that a sequence can have.
    pub positions: usize,
}

/// What was said so far. Copies share what was said.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The user's turns and the model's, alternately.
    turns: Vec<Turn>,
    /// Positions behind the end of each answer.
    reached: Vec<usize>,
}

impl Conversation {
    /// Nobody has said anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// The user says something; to what was asked before and has no answer it is added.
    pub fn ask(&mut self, messages: Vec<Message>) {
        match self.turns.last_mut() {
            Some(Turn::User(said)) => {
                said.extend(messages);
                let too_many = said.len().saturating_sub(MAX_MESSAGES);
                said.drain(..too_many);
            }
            _ => self.turns.push(Turn::User(messages)),
        }
    }

    /// Takes back what was asked last, if it has no answer.
    pub fn withdraw(&mut self) {
        if self.is_asked() {
            self.turns.pop();
        }
    }

    /// Enters what the model said: `said` in the order of its making, behind a prompt of `prompt_tokens`.
    pub fn answer(&mut self, said: Vec<Emission>, prompt_tokens: usize) {
        if self.is_asked() {
            self.reached.push(prompt_tokens + said.len());
            self.turns.push(Turn::Model(said.into()));
        }
    }

    /// Whether the user spoke last.
    pub fn is_asked(&self) -> bool {
        matches!(self.turns.last(), Some(Turn::User(_)))
    }

    /// Answered turns.
    pub fn answered(&self) -> usize {
        self.reached.len()
    }

    /// Everything said, in order.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Everything said, in order.
    pub fn into_turns(self) -> Vec<Turn> {
        self.turns
    }

    /// Forgets the oldest turns, each with its answer, once the next might not fit: so many that half of the room is free,
    /// so that what remains is not computed anew every turn. Answers with how many.
    pub fn make_room(&mut self, limits: ConversationLimits) -> usize {
        let reached = self.reached.last().copied().unwrap_or_default();
        if self.answered() < limits.turns && reached <= limits.positions / 4 * 3 {
            return 0;
        }
        let fits = |forgotten: usize| {
            let before = forgotten.checked_sub(1).map_or(0, |last| self.reached[last]);
            self.answered() - forgotten <= limits.turns / 2 && reached - before <= limits.positions / 2
        };
        let forgotten = (1..self.answered()).find(|&count| fits(count)).unwrap_or(self.answered());
        let before = forgotten.checked_sub(1).map_or(0, |last| self.reached[last]);
        self.turns.drain(..2 * forgotten);
        self.reached.drain(..forgotten);
        self.reached.iter_mut().for_each(|reached| *reached -= before);
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<Message> {
        vec![Message::Text(text.to_owned())]
    }

    /// A conversation of answers that reach these positions.
    fn answered(reached: &[usize]) -> Conversation {
        let mut conversation = Conversation::new();
        for &reached in reached {
            conversation.ask(text(&reached.to_string()));
            conversation.answer(vec![Emission::Token(1)], reached - 1);
        }
        conversation
    }

    const LIMITS: ConversationLimits = ConversationLimits { turns: 8, positions: 1_000 };

    #[test]
    fn what_has_no_answer_is_added_to_or_withdrawn() {
        let mut conversation = answered(&[10]);
        conversation.ask(text("a"));
        conversation.ask(text("b"));
        assert_eq!(conversation.turns()[2..], [Turn::User([text("a"), text("b")].concat())]);
        (0..20).for_each(|_| conversation.ask(text("c")));
        assert_eq!(conversation.turns()[2..], [Turn::User(vec![text("c").remove(0); MAX_MESSAGES])]);
        conversation.withdraw();
        conversation.withdraw();
        assert_eq!(conversation, answered(&[10]));
        conversation.answer(Vec::new(), 3);
        assert_eq!(conversation, answered(&[10]), "nobody asked");
    }

    #[test]
    fn the_oldest_turns_go_when_room_runs_out_and_leave_half_of_it() {
        let mut conversation = answered(&[300, 500, 600, 750]);
        assert_eq!(conversation.make_room(LIMITS), 0);
        conversation.ask(text("more"));
        conversation.answer(Vec::new(), 800);
        assert_eq!(conversation.make_room(LIMITS), 1, "500 remain");
        assert_eq!((conversation.answered(), conversation.turns().len()), (4, 8));
        assert_eq!(conversation.turns()[0], Turn::User(text("500")));
        assert_eq!(conversation.make_room(LIMITS), 0);

        let mut many = answered(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(many.make_room(LIMITS), 4);
        let mut huge = answered(&[900]);
        assert_eq!(huge.make_room(LIMITS), 1);
        assert_eq!(huge, Conversation::new());
        assert_eq!(huge.make_room(LIMITS), 0);
    }
}
