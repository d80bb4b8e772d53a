/** Maximum repetitions in one piece of a rule: llama.cpp unrolls them, and rejects about 2,000. */
const PLAIN_MAX = 256
const BLOCK = 64
/** Larger maximums count as unbounded, because no context is long enough for them. */
const COUNTED_MAX = 10_000_000

export interface Repetition {
  readonly text: string
  /** Factor by which the repetition multiplies the parallel continuations of the repeated piece. */
  readonly ways: number
  /** Repetitions that llama.cpp unrolls. */
  readonly unrolled: number
}

/**
 * Repeats a rule. Counts of more than 256 are written as blocks of 64, and blocks of those, so that 100,000 characters need some hundred
 * rules. Example: up to 200 is "up to 63, or 64 and up to 136".
 *
 * @param add Creates a rule from a text and returns its name.
 */
export function repeated(rule: string, min: number, max: number, add: (text: string) => string): Repetition {
  const isOpen = max > COUNTED_MAX
  if (isOpen ? min <= PLAIN_MAX : max <= PLAIN_MAX) {
    return { text: `${rule}{${min},${isOpen ? '' : max}}`, ways: 1, unrolled: isOpen ? min : max }
  }
  const exact = exactly(rule, min, add)
  if (isOpen) return { text: `${exact.text} ${rule}*`, ways: 1, unrolled: exact.unrolled }
  const rest = upTo(rule, max - min, add)
  return { text: `${exact.text} ${rest.text}`.trim(), ways: rest.ways, unrolled: exact.unrolled + rest.unrolled }
}

function exactly(rule: string, count: number, add: (text: string) => string): Repetition {
  const parts: string[] = []
  let [unit, left, unrolled] = [rule, count, 0]
  while (left > 0) {
    if (left % BLOCK > 0) parts.push(`${unit}{${left % BLOCK}}`)
    unrolled += left % BLOCK
    left = Math.floor(left / BLOCK)
    if (left > 0) {
      unit = add(`${unit}{${BLOCK}}`)
      unrolled += BLOCK
    }
  }
  return { text: parts.join(' '), ways: 1, unrolled }
}

function upTo(rule: string, count: number, add: (text: string) => string): Repetition {
  if (count <= BLOCK) return { text: count === 0 ? '' : `${rule}{0,${count}}`, ways: 1, unrolled: count }
  const size = BLOCK ** Math.floor(Math.log(count) / Math.log(BLOCK) + 1e-9)
  const block = exactly(rule, size, add)
  const less = upTo(rule, size - 1, add)
  const rest = upTo(rule, count % size, add)
  const [blockRule, lessRule] = [add(block.text), add(less.text)]
  let text = add(rest.text || '""')
  const blocks = Math.floor(count / size)
  for (let index = 0; index < blocks; index++) text = add(`${lessRule} | ${blockRule} ${text}`)
  const unrolled = block.unrolled + less.unrolled + rest.unrolled + blocks
  return { text, ways: 1 + Math.max(less.ways, rest.ways), unrolled }
}
