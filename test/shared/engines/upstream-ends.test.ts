import { setTimeout as sleep } from 'node:timers/promises'
import { expect, it } from 'vitest'
import { ask, engineOn, options } from '../../support/engine-calls.ts'
import { type Answer, startUpstream } from '../../support/processes/upstream.ts'

const STREAMS = 64

function say(answer: Answer, content: string, finish?: string): void {
  answer.frame({ id: 'c', model: 'm', choices: [{ index: 0, delta: { content }, finish_reason: finish ?? null }] })
}

it('if 64 streams complete together, at most half of them end before the last text of each stream is delivered', async () => {
  const answers: Answer[] = []
  await using upstream = await startUpstream((_call, answer) => {
    answer.open()
    say(answer, 'first')
    answers.push(answer)
  })
  await using engine = engineOn('openai', upstream.url)
  const said: string[] = []
  let begun = 0
  const read = async () => {
    for await (const event of engine.generate(ask(), options())) {
      if (event.type === 'text') said.push(event.text)
      if (event.type === 'text' && event.text === 'first') begun += 1
      if (event.type === 'finish') said.push('end')
    }
  }
  const reading = Promise.all(Array.from({ length: STREAMS }, read))
  while (begun < STREAMS) await sleep(5)
  for (const answer of answers) {
    say(answer, 'last', 'stop')
    answer.frame('[DONE]')
    answer.end()
  }
  await reading
  const ended = said.slice(0, said.lastIndexOf('last')).filter((what) => what === 'end')
  expect(said.filter((what) => what === 'end')).toHaveLength(STREAMS)
  expect(ended.length).toBeLessThanOrEqual(STREAMS / 2)
})

it('the first token of a new stream is delivered before most queued tokens of other streams', async () => {
  const others = 2 * STREAMS
  const answers: Answer[] = []
  await using upstream = await startUpstream((_call, answer) => {
    answer.open()
    if (answers.length < others) say(answer, 'first')
    answers.push(answer)
  })
  await using engine = engineOn('openai', upstream.url)
  const said: string[] = []
  const stop = new AbortController()
  const read = async () => {
    for await (const event of engine.generate(ask(), options(stop.signal))) if ('text' in event) said.push(event.text)
  }
  const reading = Array.from({ length: others + 1 }, read)
  while (answers.length <= others || said.length < others) await sleep(5)
  for (const answer of answers) say(answer, answer === answers.at(-1) ? 'first of the new stream' : 'second')
  while (said.length < 2 * others + 1) await sleep(5)
  stop.abort()
  await Promise.allSettled(reading)
  const before = said.slice(others, said.indexOf('first of the new stream'))
  expect(before.length).toBeLessThanOrEqual(others / 2)
})
