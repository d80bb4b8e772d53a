import type { GenerateEvent } from '#schemas/generate.ts'

/** How what is said stands to what was told: it has not come as far yet, goes on from it, or is something else. */
export interface Rest {
  readonly state: 'within' | 'beyond' | 'parted'
  /** With `beyond`: what follows what was told. */
  readonly rest: GenerateEvent[]
}

/** Whether callers hear an event as the model says it: calls are told when they are run, and the end with them. */
export function isSaid({ type }: GenerateEvent): boolean {
  return type !== 'tool_call' && type !== 'tool_arguments' && type !== 'finish' && type !== 'usage'
}

/** Compares the words of two runs of a model, however they came in pieces. The start of the first one counts for both. */
export function restOf(told: readonly GenerateEvent[], said: readonly GenerateEvent[]): Rest {
  if (told.length === 0) return { state: 'beyond', rest: [...said] }
  const words = said.filter(({ type }) => type !== 'start')
  let at = 0
  for (let event of told as GenerateEvent[]) {
    if (event.type === 'start') continue
    for (;;) {
      const other = words[at]
      if (other === undefined) return { state: 'within', rest: [] }
      const length = sharedOf(event, other)
      if (length === undefined) return { state: 'parted', rest: [] }
      const left: GenerateEvent | undefined = after(event, length)
      const otherLeft = signatureOf(event, other, length) ?? after(other, length)
      if (otherLeft) words[at] = otherLeft
      else at++
      if (!left) break
      event = left
    }
  }
  return { state: 'beyond', rest: words.slice(at) }
}

/** Characters that both begin with, all of one of them; undefined where they differ. */
function sharedOf(a: GenerateEvent, b: GenerateEvent): number | undefined {
  if (a.type !== b.type || !('text' in a) || !('text' in b)) {
    return JSON.stringify(a) === JSON.stringify(b) ? 0 : undefined
  }
  if (a.type === 'reasoning' && b.type === 'reasoning' && a.redacted !== b.redacted) return undefined
  const length = Math.min(a.text.length, b.text.length)
  return a.text.slice(0, length) === b.text.slice(0, length) ? length : undefined
}

/** The signature that comes after words that were told without it. */
function signatureOf(told: GenerateEvent, said: GenerateEvent, length: number): GenerateEvent | undefined {
  if (told.type !== 'reasoning' || said.type !== 'reasoning' || said.signature === undefined) return undefined
  return told.signature === undefined && said.text.length === length && length > 0 ? { ...said, text: '' } : undefined
}

/** An event without its first characters; undefined where nothing is left. */
function after(event: GenerateEvent, length: number): GenerateEvent | undefined {
  if (!('text' in event) || event.text.length <= length) return undefined
  const text = event.text.slice(length)
  if (event.type !== 'text' || !event.logprobs) return { ...event, text }
  let end = 0
  const logprobs = event.logprobs.filter(({ token }) => {
    end += token.length
    return end > length
  })
  return { ...event, text, logprobs }
}
