/** What kind of thing a question asks for, where words alone tell. */
export type AnswerType = 'date' | 'number' | 'person'

const ASKED: Readonly<Record<AnswerType, RegExp>> = {
  date: /\b(?:when (?:was|were|did|has|had)|(?:since|until) when|(?:which|what) (?:days?|dates?|months?|years?)\b)/i,
  number:
    /\bhow (?:many|much|long|often|old|large|big|far|fast|high)\b|\b(?:largest|smallest|maximum|minimum|percentage|fee|price|salary)\b/i,
  // What somebody is or may do is a role as often as a name.
  person: /\bwho(?:se)?\b(?! (?:is|are|can|may|should|must|has|have|does|do)\b)|\bsurname\b/i,
}
/** A version dates a change as well as a day does. */
const DATE =
  /\b(?:1[5-9]|20)\d\d\b|['’]\d\d\b|\b\d+\.\d|\b(?:january|february|march|april|may|june|july|august|september|october|november|december)\b/i
const NUMBER =
  /\p{N}|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|hundred|thousand|million|billion|half|quarter|third|once|twice|every|each|daily|weekly|monthly|yearly|annual(?:ly)?|unlimited|hours?|days?|weeks?|months?|years?)\b/iu
/** Two names in a row; the first word of a sentence is written like one. */
const PERSON = /(?<![.!?:]\s)(?<!^)\b\p{Lu}\p{Ll}+(?:\s+(?:\p{Lu}\.|van|de|von)){0,2}\s+\p{Lu}\p{L}+/u
const FOUND: Readonly<Record<AnswerType, RegExp>> = { date: DATE, number: NUMBER, person: PERSON }

/** The kinds of things that a question asks for; none where it asks why, how, or what something is. */
export function answerTypesOf(question: string): AnswerType[] {
  return (Object.keys(ASKED) as AnswerType[]).filter((type) => ASKED[type].test(question))
}

/** Whether a text holds something of that kind. */
export function holdsType(text: string, type: AnswerType): boolean {
  return FOUND[type].test(text)
}
