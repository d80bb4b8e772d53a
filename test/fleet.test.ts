import { describe, expect, inject, it } from 'vitest'
import { type Fleet, openFleet, type RoleProcess } from './support/processes.ts'

const kafka = inject('kafka')

/** How one call ended, as its caller saw it. */
interface Ending {
  status: number
  text: string
  /** The answer is whole: a JSON body, or a stream that ended in [DONE]. */
  isWhole: boolean
  isErrorFrame: boolean
  afterMs: number
}

describe.skipIf(!kafka)('a fleet of processes on Kafka', () => {
  it('answers every call of a killed worker that had no output, and ends the others in an error frame', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    // Fewer slots than calls, so that both workers run some of either sort.
    const slots = { INFERENCE_SLOTS: '30' }
    const [doomed] = [await fleet.start('inference', slots), await fleet.start('inference', slots)]
    const silent: Promise<Ending>[] = []
    const talking: Promise<Ending>[] = []
    for (let i = 0; i < 25; i++) {
      silent.push(callOnce(fleet, ingress, '!echo first_ms=3000\nanswer', false))
      talking.push(callOnce(fleet, ingress, '!echo tokens=40 delay_ms=100', true))
    }
    await new Promise((resolve) => setTimeout(resolve, 1_500))
    doomed.kill('SIGKILL')
    const [whole, streams] = [await Promise.all(silent), await Promise.all(talking)]
    for (const ending of whole) expect(ending).toMatchObject({ status: 200, isWhole: true })
    for (const ending of streams)
      expect(Number(ending.isWhole) + Number(ending.isErrorFrame), ending.text.slice(-300)).toBe(1)
    const retried = ingress.log.filter((line) => line.msg === 'job tried again' && line.reason === 'lost')
    expect(retried.length).toBeGreaterThan(0)
    expect(streams.some((ending) => ending.isErrorFrame)).toBe(true)
    expect(streams.some((ending) => ending.isWhole)).toBe(true)
  })

  it('loses no call when a worker is told to end under load', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    const leaving = await fleet.start('inference')
    await fleet.start('inference')
    const calls = [
      ...callMany(fleet, ingress, 40, '!echo first_ms=800\nanswer', false),
      ...callMany(fleet, ingress, 20, '!echo tokens=30 delay_ms=50', true),
    ]
    await new Promise((resolve) => setTimeout(resolve, 300))
    leaving.kill('SIGTERM')
    calls.push(...callMany(fleet, ingress, 20, 'late', false))
    for (const ending of await Promise.all(calls)) expect(ending).toMatchObject({ status: 200, isWhole: true })
    expect(await leaving.exited).toBe(0)
  })

  it('finishes the calls of an ingress that is told to end, and refuses new ones with 503', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    await fleet.start('inference')
    const calls = [
      ...callMany(fleet, ingress, 20, '!echo first_ms=1500\nanswer', false),
      ...callMany(fleet, ingress, 20, '!echo tokens=30 delay_ms=50', true),
    ]
    await new Promise((resolve) => setTimeout(resolve, 500))
    ingress.kill('SIGTERM')
    await new Promise((resolve) => setTimeout(resolve, 200))
    const refused = await callOnce(fleet, ingress, 'new', false)
    expect(refused.status).toBe(503)
    for (const ending of await Promise.all(calls)) expect(ending).toMatchObject({ status: 200, isWhole: true })
    expect(await ingress.exited).toBe(0)
  })

  it('hands a job back to another worker when the drain takes too long', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    const leaving = await fleet.start('inference', { DRAIN_MS: '300' })
    const calls = callMany(fleet, ingress, 5, '!echo first_ms=8000\nanswer', false)
    await new Promise((resolve) => setTimeout(resolve, 500))
    await fleet.start('inference')
    leaving.kill('SIGTERM')
    for (const ending of await Promise.all(calls)) expect(ending).toMatchObject({ status: 200, isWhole: true })
    expect(ingress.log.filter((line) => line.reason === 'handed_back')).toHaveLength(5)
  })

  it('leaves at once with exit code 1 at a second signal', async () => {
    await using fleet = await openFleet(kafka ?? '')
    const ingress = await fleet.start('ingress')
    const worker = await fleet.start('inference')
    const call = callOnce(fleet, ingress, '!echo first_ms=60000\nanswer', false)
    call.catch(() => {})
    await new Promise((resolve) => setTimeout(resolve, 500))
    worker.kill('SIGTERM')
    await new Promise((resolve) => setTimeout(resolve, 300))
    worker.kill('SIGTERM')
    expect(await worker.exited).toBe(1)
  })
})

function callMany(
  fleet: Fleet,
  ingress: RoleProcess,
  count: number,
  script: string,
  stream: boolean,
): Promise<Ending>[] {
  return Array.from({ length: count }, () => callOnce(fleet, ingress, script, stream))
}

async function callOnce(fleet: Fleet, ingress: RoleProcess, script: string, stream: boolean): Promise<Ending> {
  const startedAt = Date.now()
  const messages = [{ role: 'user', content: script }]
  const response = await fleet.post(ingress, '/v1/chat/completions', { model: 'echo-1', messages, stream })
  const text = await response.text()
  return {
    status: response.status,
    text,
    isWhole: stream ? text.endsWith('data: [DONE]\n\n') : response.status === 200,
    isErrorFrame: text.includes('data: {"error":'),
    afterMs: Date.now() - startedAt,
  }
}
