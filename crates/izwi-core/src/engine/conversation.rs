//! The history of a conversation: its turns, the positions they take, and how it is truncated.
//!
//! Must not know the engine: clients own a conversation, pass it with each turn and append the answer.

use std::sync::Arc;

use izwi_types::{Emission, Message, ToolCall, Turn};

/// The most messages in one user turn, beside results of tools; the oldest are dropped.
const MAX_MESSAGES: usize = 8;

/// Limits of a conversation in a model's context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConversationLimits {
    /// The most answered turns.
    pub turns: usize,
    /// The most positions of a sequence.
    pub positions: usize,
}

/// The turns so far. Clones share the content of the turns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// Turns of the user and of the model, alternating.
    turns: Vec<Turn>,
    /// Number of positions up to the end of each answer.
    ends_at: Vec<usize>,
}

impl Conversation {
    /// An empty conversation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends messages to the user's unanswered turn, or starts one.
    pub fn ask(&mut self, messages: Vec<Message>) {
        match self.turns.last_mut() {
            Some(Turn::User(turn)) => {
                turn.extend(messages);
                // Each call has its result: a model waits for all of them.
                let is_result = |message: &Message| matches!(message, Message::Result { .. });
                let count = turn.iter().filter(|message| !is_result(message)).count();
                let mut excess = count.saturating_sub(MAX_MESSAGES);
                turn.retain(|message| {
                    let is_kept = is_result(message) || excess == 0;
                    excess -= usize::from(!is_kept);
                    is_kept
                });
            }
            _ => self.turns.push(Turn::User(messages)),
        }
    }

    /// Removes the user's unanswered turn, if there is one.
    pub fn withdraw(&mut self) {
        if self.is_asked() {
            self.turns.pop();
        }
    }

    /// Appends the model's answer, generated after a prompt of `prompt_tokens`.
    pub fn answer(&mut self, emissions: Vec<Emission>, prompt_tokens: usize) {
        if self.is_asked() {
            self.ends_at.push(prompt_tokens + emissions.len());
            self.turns.push(Turn::Model(emissions.into()));
        }
    }

    /// Appends an answer that no model here generated, of about `positions` together with the user's turn before it. An
    /// answer without a question stands after an empty turn of the user.
    pub fn tell(&mut self, text: &str, positions: usize) {
        if !self.is_asked() {
            self.ask(Vec::new());
        }
        self.ends_at.push(self.ends_at.last().copied().unwrap_or_default() + positions);
        self.turns.push(Turn::Told(text.into()));
    }

    /// Appends a call of a tool, of about `positions`, to the last answer, or makes an answer of it.
    pub fn call(&mut self, call: Arc<ToolCall>, positions: usize) {
        let call = Emission::Call(call);
        match (self.turns.last_mut(), self.ends_at.last_mut()) {
            (Some(Turn::Model(emissions)), Some(ends_at)) => {
                *emissions = emissions.iter().cloned().chain([call]).collect();
                *ends_at += positions;
            }
            _ => {
                if !self.is_asked() {
                    self.ask(Vec::new());
                }
                self.ends_at.push(self.ends_at.last().copied().unwrap_or_default() + positions);
                self.turns.push(Turn::Model([call].into()));
            }
        }
    }

    /// Keeps what was heard of the answers: none of the last `later`, and the first `kept` emissions of the one before
    /// them. Turns of the user without an answer are joined.
    pub fn keep_heard(&mut self, later: usize, kept: usize) {
        let has_answer = later < self.answered();
        (0..later).for_each(|_| self.withdraw_answer());
        if !has_answer {
            return;
        }
        if kept == 0 {
            return self.withdraw_answer();
        }
        let answer = self.turns.iter_mut().rev().find_map(|turn| match turn {
            Turn::Model(emissions) => Some(emissions),
            Turn::User(_) | Turn::Told(_) => None,
        });
        if let (Some(answer), Some(ends_at)) = (answer, self.ends_at.last_mut()) {
            let kept = kept.min(answer.len());
            *ends_at -= answer.len() - kept;
            *answer = answer[..kept].into();
        }
    }

    /// Removes the last answer, and joins the user's turns around it.
    fn withdraw_answer(&mut self) {
        let Some(at) = self.turns.iter().rposition(|turn| !matches!(turn, Turn::User(_))) else { return };
        let behind = self.turns.split_off(at + 1);
        self.turns.pop();
        self.ends_at.pop();
        for turn in behind {
            if let Turn::User(messages) = turn {
                self.ask(messages);
            }
        }
    }

    /// Whether the last turn is the user's.
    pub fn is_asked(&self) -> bool {
        matches!(self.turns.last(), Some(Turn::User(_)))
    }

    /// Number of answered turns.
    pub fn answered(&self) -> usize {
        self.ends_at.len()
    }

    /// All turns, in order.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// All turns, in order.
    pub fn into_turns(self) -> Vec<Turn> {
        self.turns
    }

    /// Drops the oldest answered turns if the next turn might not fit. Drops until half of the limits is free, so that
    /// the rest stays in the prefix cache for several turns. Returns the number of dropped turns.
    pub fn truncate(&mut self, limits: ConversationLimits) -> usize {
        let ends_at = self.ends_at.last().copied().unwrap_or_default();
        if self.answered() < limits.turns && ends_at <= limits.positions / 4 * 3 {
            return 0;
        }
        let fits = |dropped: usize| {
            let before = dropped.checked_sub(1).map_or(0, |last| self.ends_at[last]);
            self.answered() - dropped <= limits.turns / 2 && ends_at - before <= limits.positions / 2
        };
        let dropped = (1..self.answered()).find(|&count| fits(count)).unwrap_or(self.answered());
        let before = dropped.checked_sub(1).map_or(0, |last| self.ends_at[last]);
        self.turns.drain(..2 * dropped);
        self.ends_at.drain(..dropped);
        self.ends_at.iter_mut().for_each(|ends_at| *ends_at -= before);
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Vec<Message> {
        vec![Message::Text(text.to_owned())]
    }

    /// A conversation of answers that reach these positions.
    fn answered(ends_at: &[usize]) -> Conversation {
        let mut conversation = Conversation::new();
        for &ends_at in ends_at {
            conversation.ask(text(&ends_at.to_string()));
            conversation.answer(vec![Emission::Token(1)], ends_at - 1);
        }
        conversation
    }

    const LIMITS: ConversationLimits = ConversationLimits { turns: 8, positions: 1_000 };

    #[test]
    fn answers_that_were_told_are_turns_too() {
        let mut conversation = Conversation::new();
        conversation.tell("Hello.", 5);
        conversation.ask(text("a"));
        conversation.tell("b", 7);
        let told = |text: &str| Turn::Told(text.into());
        let turns = [Turn::User(Vec::new()), told("Hello."), Turn::User(text("a")), told("b")];
        assert_eq!((conversation.turns(), &conversation.ends_at[..]), (&turns[..], &[5, 12][..]));
        conversation.keep_heard(0, 0);
        assert_eq!((conversation.answered(), conversation.is_asked()), (1, true));
        conversation.ask(text("c"));
        conversation.answer(vec![Emission::Token(1)], 600);
        conversation.ask(text("d"));
        conversation.tell("e", 300);
        assert_eq!(conversation.truncate(LIMITS), 2);
        assert_eq!((conversation.turns().len(), &conversation.ends_at[..]), (2, &[300][..]));
    }

    #[test]
    fn results_of_tools_are_kept_beside_the_last_messages() {
        let mut conversation = Conversation::new();
        for index in 0..2 * MAX_MESSAGES {
            let result = Message::Result { call_id: index.to_string(), output: String::new() };
            conversation.ask(vec![Message::Text(index.to_string()), result]);
        }
        let [Turn::User(messages)] = conversation.turns() else { unreachable!() };
        let texts = messages.iter().filter_map(|message| match message {
            Message::Text(text) => text.parse().ok(),
            _ => None,
        });
        let texts: Vec<usize> = texts.collect();
        assert_eq!(texts, (MAX_MESSAGES..2 * MAX_MESSAGES).collect::<Vec<_>>());
        assert_eq!(messages.len() - texts.len(), 2 * MAX_MESSAGES);
    }

    #[test]
    fn an_unanswered_turn_is_extended_or_withdrawn() {
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
        assert_eq!(conversation, answered(&[10]), "there is no open turn");
    }

    #[test]
    fn what_was_not_heard_is_forgotten() {
        let answer = |tokens: std::ops::Range<u32>| tokens.map(Emission::Token).collect::<Vec<_>>();
        let mut conversation = Conversation::new();
        for (index, question) in ["a", "b", "c"].into_iter().enumerate() {
            conversation.ask(text(question));
            conversation.answer(answer(0..4), 10 * (index + 1));
        }
        let mut last = conversation.clone();
        last.keep_heard(0, 3);
        assert_eq!(last.turns()[5], Turn::Model(answer(0..3).into()));
        assert_eq!((last.answered(), &last.ends_at[..]), (3, &[14, 24, 33][..]));
        last.keep_heard(0, 9);
        assert_eq!(last.ends_at, [14, 24, 33]);
        conversation.ask(text("d"));
        conversation.keep_heard(1, 1);
        let joined = Turn::User([text("c"), text("d")].concat());
        assert_eq!(conversation.turns()[3..], [Turn::Model(answer(0..1).into()), joined]);
        assert_eq!(conversation.ends_at, [14, 21]);
        conversation.keep_heard(0, 0);
        assert_eq!(conversation.turns()[2..], [Turn::User([text("b"), text("c"), text("d")].concat())]);
        conversation.keep_heard(5, 1);
        assert_eq!((conversation.answered(), conversation.turns().len()), (0, 1));
    }

    #[test]
    fn truncation_drops_the_oldest_turns_until_half_of_the_limits_is_free() {
        let mut conversation = answered(&[300, 500, 600, 750]);
        assert_eq!(conversation.truncate(LIMITS), 0);
        conversation.ask(text("more"));
        conversation.answer(Vec::new(), 800);
        assert_eq!(conversation.truncate(LIMITS), 1, "500 remain");
        assert_eq!((conversation.answered(), conversation.turns().len()), (4, 8));
        assert_eq!(conversation.turns()[0], Turn::User(text("500")));
        assert_eq!(conversation.truncate(LIMITS), 0);

        let mut many = answered(&[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(many.truncate(LIMITS), 4);
        let mut huge = answered(&[900]);
        assert_eq!(huge.truncate(LIMITS), 1);
        assert_eq!(huge, Conversation::new());
        assert_eq!(huge.truncate(LIMITS), 0);
    }
}
