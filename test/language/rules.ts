/*
 * Rules of plain language (docs/reference/glossary.md), as patterns that a program can check.
 *
 * A text is a comment, a message, a paragraph of a page or a name. `texts.ts` finds the texts; each rule here reports the parts of a text
 * that break it. A rule must be nearly free of false reports, because each report fails the build. Reviewers check the rules that need
 * judgement.
 */

/** Source of a text: some rules apply to prose, others to names. */
export type TextKind = 'comment' | 'message' | 'page' | 'identifier'

export interface Rule {
  readonly name: string
  readonly kinds: readonly TextKind[]
  /** Advice that is printed with a report. */
  readonly advice: string
  /** Parts of the text that break the rule. */
  readonly find: (text: string) => readonly string[]
}

const PROSE: readonly TextKind[] = ['comment', 'message', 'page']
const WORDS_MAX = 25

/** Sentences that begin without a subject. */
const HEADLESS = /^(?:It|They|Those|Its|The same|Who|Whoever|What|Of)\b(?! is\b.*\?$)/
/** Headless relative clauses anywhere in a sentence. */
const RELATIVE =
  /\b(?:what (?:came|comes|becomes) of|that which|of (?:whom|which|that) (?:it|there)|whatever (?:it|they))\b/gi
/** Verbs and pronouns of people, used for code and processes. */
const PEOPLE = /\b(?:whoever|whomever|nobody|everybody|hears?|heard|tells?|told|telling)\b/gi
/** Old or private words, each with the term of the field. */
const WORDS: readonly (readonly [RegExp, string])[] = [
  [/\bbeside\b/gi, 'next to'],
  [/\bof late\b/gi, 'recently'],
  [/\bmend(?:s|ed|ing)?\b/gi, 'fix'],
  [/\b(?:hand|hands|handed|handing) (?:it |them |one |a job |jobs )?in\b/gi, 'submit'],
  [/\bcom(?:e|es|ing) by\b/gi, 'arrive'],
  [/\b(?:is|are) let (?:in|wait|go)\b/gi, 'is admitted, may wait'],
  [/\bheld up\b|\bhold(?:s|ing)? up\b/gi, 'delay, block'],
  [/\bbut for\b/gi, 'except'],
  [/\bas far as\b/gi, 'if, up to'],
  [/\bhas not the\b|\bhas not a\b|\bhave not the\b/gi, 'lacks the'],
  [/\bforbidden to\b/gi, 'must not'],
  [/\bgo(?:es)? on\b/gi, 'continue'],
  [/\bthe other way about\b/gi, 'the reverse'],
  [/\bby and by\b/gi, 'gradually'],
]
/** Invented names in code, each with the usual technical term to use instead. */
const NAMES: readonly (readonly [RegExp, string])[] = [
  [/^LOOK_MS$/, 'POLL_INTERVAL_MS'],
  [/^AGAIN_MS$/, 'RETRY_DELAY_MS'],
  [/^KEEP_MS$/, 'a TTL with its object, such as RESULT_TTL_MS'],
  [/[aA]rbiter/, 'owner'],
  [/^(?:use)?Deed$|^deed$/, 'action'],
  [/[wW]ishes/, 'options, Prefer header'],
  [/^(?:inTurns|InTurns|TurnPlaces)$/, 'runYielding, TickThrottle'],
  [/^(?:Aside|standAside)$/, 'parked calls, pause'],
  [/^(?:ModelRooms?|JobsRoom|KeyRoom|BodyRoom)$/, 'bulkhead, quota, budget'],
  [/[rR]hythm/, 'heartbeat interval'],
  [
    /^(?:LOOK|TELL|ASK|AWAY|FREE|ASIDE|TURN)_MS(?:_MAX|_MIN)?$/,
    'a constant that names its quantity, such as PUBLISH_DELAY_MS',
  ],
  [/^(?:RESTS?|DOOR|KIN|ALIKE)$/, 'a constant that names its quantity, such as PAUSE_FACTOR'],
  [/^(?:Kept|Told|Shown|Asked)$/, 'a noun, such as StoredResponse'],
  [/[pP]assed(?:Reply|Control)|ManyJobs/, 'payload, bulk'],
  [/Givable|HANDS_IN|[hH]andsIn|[wW]henThere|^nextTurn$|^nearestOf$/, 'delegation, submission, wait, yield, similar'],
  [/^is(?:CaredFor|Unheard|LookOnly)$|^overlapSeconds$|^OVERLAP_SECONDS/, 'claimer, dead, checks only, grace period'],
  [/^(?:bury|tellOwner)$|Unfit/, 'dead letter, notify, unsuitable'],
]

/** Rules, in the order in which they are reported. */
export const RULES: readonly Rule[] = [
  {
    name: 'subject',
    kinds: PROSE,
    advice: 'name the subject: a sentence does not begin with It, They, Those, Its, The same, Who, What, Of',
    find: (text) => sentencesOf(text).filter((sentence) => HEADLESS.test(sentence)),
  },
  {
    name: 'headless clause',
    kinds: PROSE,
    advice: 'use a noun: "results of the requests", not "what came of the requests"',
    find: (text) => text.match(RELATIVE) ?? [],
  },
  {
    name: 'people',
    kinds: PROSE,
    advice: 'processes send, receive, publish, return, record, log or report; they do not hear or tell',
    find: (text) => text.match(PEOPLE) ?? [],
  },
  {
    name: 'word',
    kinds: PROSE,
    advice: `use the word of the field: ${WORDS.map(([, word]) => word).join('; ')}`,
    find: (text) => WORDS.flatMap(([pattern]) => text.match(pattern) ?? []),
  },
  {
    name: 'length',
    kinds: PROSE,
    advice: `one idea per sentence, at most ${WORDS_MAX} words`,
    find: (text) => sentencesOf(text).filter((sentence) => wordsIn(sentence) > WORDS_MAX),
  },
  {
    name: 'name',
    kinds: ['identifier'],
    advice: `use the term of the field: ${NAMES.map(([, term]) => term).join('; ')}`,
    find: (text) => NAMES.filter(([pattern]) => pattern.test(text)).map(() => text),
  },
]

function sentencesOf(text: string): string[] {
  return text
    .split(/(?<=[.!?:])\s+(?=[A-Z`"'(])/)
    .map((sentence) => sentence.trim())
    .filter(Boolean)
}

/** Returns the number of words that contain a letter. Code between backticks counts as one word. */
function wordsIn(sentence: string): number {
  return sentence.replaceAll(/`[^`]*`/g, 'code').match(/[A-Za-z][\w'’-]*/g)?.length ?? 0
}
