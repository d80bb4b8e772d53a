import type { GenerateEvent } from '#schemas/generate.ts'

/**
 * Result of comparing a new run of the model with the events that were published. `within`: the new text is a prefix of the published text.
 * `beyond`: the new text continues the published text. `parted`: the texts differ.
 */
export interface Rest {
  readonly state: 'within' | 'beyond' | 'parted'
  /** With `beyond`: the events that follow the published ones. */
  readonly rest: GenerateEvent[]
}

/** Whether an event is published while the model generates. Tool calls are published when they run, together with the end. */
export function isSaid({ type }: GenerateEvent): boolean {
  return type !== 'tool_call' && type !== 'tool_arguments' && type !== 'finish' && type !== 'usage'
}

/**
 * Compares the content of two runs of a model, independent of how the events split it. The start event of the first run counts for both.
 */
export function restOf(published: readonly GenerateEvent[], generated: readonly GenerateEvent[]): Rest {
  if (published.length === 0) return { state: 'beyond', rest: [...generated] }
  const words = generated.filter(({ type }) => type !== 'start')
  let at = 0
  for (let event of published as GenerateEvent[]) {
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

/** Length of the common prefix, which is all of the shorter text; undefined if the texts differ. */
function sharedOf(a: GenerateEvent, b: GenerateEvent): number | undefined {
  if (a.type !== b.type || !('text' in a) || !('text' in b)) {
    return JSON.stringify(a) === JSON.stringify(b) ? 0 : undefined
  }
  if (a.type === 'reasoning' && b.type === 'reasoning' && a.redacted !== b.redacted) return undefined
  const length = Math.min(a.text.length, b.text.length)
  return a.text.slice(0, length) === b.text.slice(0, length) ? length : undefined
}

/** The signature of a reasoning text that was published without it. */
function signatureOf(published: GenerateEvent, generated: GenerateEvent, length: number): GenerateEvent | undefined {
  if (published.type !== 'reasoning' || generated.type !== 'reasoning' || generated.signature === undefined)
    return undefined
  return published.signature === undefined && generated.text.length === length && length > 0
    ? { ...generated, text: '' }
    : undefined
}

/** An event without its first characters; undefined if nothing is left. */
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
