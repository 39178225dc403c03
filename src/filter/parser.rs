//! The grammar of expressions (docs/behaviour.md, "SQL92 selectors").
//!
//! From loose to tight: `OR`; `AND`; `=`, `<>`, `IS [NOT] NULL`; the comparisons, `BETWEEN`, `IN`,
//! `CONTAINS`, `STARTSWITH`, `ENDSWITH`; `+`, `-`, `NOT`.

use memchr::memmem;

use super::lexer::{Kind, Token, Word, shown, syntax_error, tokens};
use super::syntax::{Comparison, Expression, Node, Part};
use super::{MAX_DEPTH, SelectorError};

type Parsed = Result<Node, SelectorError>;

/// Compiles a text.
pub fn parse(text: &str) -> Result<Expression, SelectorError> {
    let tokens = tokens(text)?;
    let mut parser = Parser {
        text,
        tokens: &tokens,
        at: 0,
        nested: 0,
    };
    let expression = parser.or()?;
    if parser.peek() != Kind::End {
        return Err(parser.unexpected("an operator or the end of the expression"));
    }
    expression.finish()
}

struct Parser<'a> {
    text: &'a str,
    tokens: &'a [Token<'a>],
    at: usize,
    nested: u16,
}

impl<'a> Parser<'a> {
    fn kind_at(&self, at: usize) -> Kind<'a> {
        self.tokens.get(at).map_or(Kind::End, |token| token.kind)
    }

    fn peek(&self) -> Kind<'a> {
        self.kind_at(self.at)
    }

    fn take(&mut self, kind: Kind<'_>) -> bool {
        let found = self.peek() == kind;
        self.at += usize::from(found);
        found
    }

    fn take_word(&mut self, word: Word) -> bool {
        self.take(Kind::Word(word))
    }

    fn take_sign(&mut self, sign: &str) -> bool {
        self.take(Kind::Sign(sign))
    }

    fn unexpected(&self, expected: &'static str) -> SelectorError {
        let end = self.text.len();
        let span = self
            .tokens
            .get(self.at)
            .map_or(end..end, |token| token.span.clone());
        let found = if span.is_empty() {
            "the end".to_owned()
        } else {
            shown(&self.text[span.clone()])
        };
        syntax_error(self.text, span.start, found, expected)
    }

    fn expect_sign(&mut self, sign: &str, expected: &'static str) -> Result<(), SelectorError> {
        if self.take_sign(sign) {
            Ok(())
        } else {
            Err(self.unexpected(expected))
        }
    }

    fn expect_word(&mut self, word: Word, expected: &'static str) -> Result<(), SelectorError> {
        if self.take_word(word) {
            Ok(())
        } else {
            Err(self.unexpected(expected))
        }
    }

    fn or(&mut self) -> Parsed {
        let mut left = self.and()?;
        while self.take_word(Word::Or) {
            left = left.or(self.and()?)?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Parsed {
        let mut left = self.equality()?;
        while self.take_word(Word::And) {
            left = left.and(self.equality()?)?;
        }
        Ok(left)
    }

    fn equality(&mut self) -> Parsed {
        let mut left = self.comparison()?;
        loop {
            left = if self.take_sign("=") {
                left.equal(self.comparison()?)?
            } else if self.take_sign("<>") {
                left.equal(self.comparison()?)?.not()?
            } else if self.take_word(Word::Is) {
                let not = self.take_word(Word::Not);
                self.expect_word(Word::Null, "NULL or NOT NULL")?;
                let is_null = left.null()?;
                if not { is_null.not()? } else { is_null }
            } else {
                return Ok(left);
            };
        }
    }

    fn comparison(&mut self) -> Parsed {
        let mut left = self.unary()?;
        loop {
            let not = self.peek() == Kind::Word(Word::Not);
            let next = self.kind_at(self.at + usize::from(not));
            left = match next {
                Kind::Sign(sign) if !not => {
                    let how = match sign {
                        "<" => Comparison::Less,
                        "<=" => Comparison::LessOrEqual,
                        ">" => Comparison::Greater,
                        ">=" => Comparison::GreaterOrEqual,
                        _ => return Ok(left),
                    };
                    self.at += 1;
                    left.compare(how, self.unary()?)?
                }
                Kind::Word(word) => {
                    self.at += 1 + usize::from(not);
                    match word {
                        Word::Between => self.between(left, not)?,
                        Word::In => left.listed(self.texts()?, not)?,
                        Word::Contains | Word::StartsWith | Word::EndsWith => {
                            let part = part(word, self.text()?);
                            left.search(part, not)?
                        }
                        _ => {
                            self.at -= 1 + usize::from(not);
                            return Ok(left);
                        }
                    }
                }
                _ => return Ok(left),
            };
        }
    }

    fn between(&mut self, value: Node, not: bool) -> Parsed {
        let low = self.unary()?;
        self.expect_word(Word::And, "AND between the bounds of BETWEEN")?;
        let high = self.unary()?;
        value.between(low, high, not)
    }

    fn texts(&mut self) -> Result<Vec<Box<[u8]>>, SelectorError> {
        self.expect_sign("(", "the list of IN in parentheses")?;
        let mut texts = vec![self.text()?];
        while self.take_sign(",") {
            texts.push(self.text()?);
        }
        self.expect_sign(")", "a comma or the end of the list of IN")?;
        Ok(texts)
    }

    fn text(&mut self) -> Result<Box<[u8]>, SelectorError> {
        let Kind::Text(quoted) = self.peek() else {
            return Err(self.unexpected("a string in single quotes"));
        };
        self.at += 1;
        Ok(unquoted(quoted))
    }

    fn unary(&mut self) -> Parsed {
        if self.nested >= MAX_DEPTH {
            return Err(SelectorError::TooDeep);
        }
        self.nested += 1;
        let parsed = if self.take_sign("+") {
            self.unary()
        } else if self.take_sign("-") {
            self.unary().and_then(Node::negate)
        } else if self.take_word(Word::Not) {
            self.unary().and_then(Node::not)
        } else {
            self.primary()
        };
        self.nested -= 1;
        parsed
    }

    fn primary(&mut self) -> Parsed {
        let expression = match self.peek() {
            Kind::Text(quoted) => Expression::Text(unquoted(quoted)),
            Kind::Integer(digits) => integer(digits)?,
            Kind::Float(digits) => float(digits)?,
            Kind::Word(Word::True) => Expression::Bool(true),
            Kind::Word(Word::False) => Expression::Bool(false),
            Kind::Word(Word::Null) => Expression::Null,
            Kind::Name(name) => Expression::Property(name.into()),
            Kind::Sign("(") => {
                self.at += 1;
                let inner = self.or()?;
                self.expect_sign(")", "an operator or a closing parenthesis")?;
                return Ok(inner);
            }
            _ => {
                return Err(self.unexpected(
                    "a property, a string, a number, TRUE, FALSE, NULL, NOT or a parenthesis",
                ));
            }
        };
        self.at += 1;
        Ok(Node::leaf(expression))
    }
}

fn unquoted(quoted: &str) -> Box<[u8]> {
    quoted.replace("''", "'").into_bytes().into_boxed_slice()
}

fn part(word: Word, text: Box<[u8]>) -> Part {
    match word {
        Word::StartsWith => Part::Start(text),
        Word::EndsWith => Part::End(text),
        _ => Part::Anywhere(Box::new(memmem::Finder::new(&text).into_owned())),
    }
}

fn integer(digits: &str) -> Result<Expression, SelectorError> {
    let number: i64 = digits
        .trim_end_matches(['l', 'L'])
        .parse()
        .map_err(|_| SelectorError::Meaning(format!("{digits} is greater than {}", i64::MAX)))?;
    Ok(i32::try_from(number).map_or(Expression::Long(number), Expression::Int))
}

fn float(digits: &str) -> Result<Expression, SelectorError> {
    /// The smallest double above zero, as Java calls it.
    const MIN_VALUE: f64 = f64::from_bits(1);
    // The lexer lets only decimal numbers through.
    let number: f64 = digits.parse().unwrap_or(f64::NAN);
    if number > f64::MAX || number.is_nan() {
        let remark = format!("{digits} is greater than {:e}", f64::MAX);
        return Err(SelectorError::Meaning(remark));
    }
    if number < MIN_VALUE {
        let remark = format!("{digits} is less than {MIN_VALUE:e}");
        return Err(SelectorError::Meaning(remark));
    }
    Ok(Expression::Double(number))
}
