/* Tests of research jobs in child processes: workers are killed, and models are slow or hang. */

import { readdirSync, readlinkSync } from 'node:fs'
import { afterAll, afterEach, beforeAll, describe, expect, inject, it } from 'vitest'
import {
  PLAIN,
  type Researcher,
  ResearchFleet,
  type ResearchJob,
  reportHash,
  SETTLES_MS,
} from '../../support/research/fleet.ts'
import type { OutsideCall } from '../../support/research/outside.ts'
import { until } from '../../support/stack.ts'

const kafka = inject('kafka')
const postgres = inject('postgres')
/** Timeout of a test in ms. On a busy machine, the replacement of each killed worker takes ten seconds. */
const TEST_MS = 400_000
const WORKERS = 3
const WAITING = 100
/** Maximum number of concurrent requests for searches and pages that one attempt of a research makes. */
const AT_ONCE = 4
/** Limits of a research that makes one search and reads one page, so it makes no concurrent requests. */
const IN_SERIES = { max_tool_calls: 1, max_sources: 1 }

/** The moment at which the worker of a research is killed. */
interface KillPoint {
  readonly name: string
  readonly more: object
  /** The worker is killed before the nth request of this kind (to a search, page or model) is answered. */
  readonly at?: { readonly sort: string; readonly nth: number }
  /** The worker is killed as soon as the API returns the job with at least this many steps or child jobs. */
  readonly shown?: { readonly steps: number } | { readonly children: number }
}

const KILL_POINTS: readonly KillPoint[] = [
  ...[1, 2, 4].map((nth) => calling('search', nth, {})),
  ...[1, 3].map((nth) => calling('page', nth, {})),
  ...['model plan', 'model note', 'model write'].map((sort) => calling(sort, 1, {})),
  calling('search', 1, IN_SERIES),
  calling('page', 1, IN_SERIES),
  ...[1, 4, 7, 9].map((steps) => ({ name: `${steps} steps are shown`, more: {}, shown: { steps } })),
  ...[2, 3].map((children) => ({ name: `${children} children are shown`, more: {}, shown: { children } })),
]

function calling(sort: string, nth: number, more: object): KillPoint {
  return { name: `${more === IN_SERIES ? 'in series, ' : ''}${sort} ${nth} is asked for`, more, at: { sort, nth } }
}

describe.skipIf(!kafka || !postgres)('research jobs in child processes', () => {
  let fleet: ResearchFleet
  beforeAll(async () => {
    fleet = await ResearchFleet.open(kafka ?? '', postgres ?? '', WORKERS)
  }, TEST_MS)
  afterAll(() => fleet?.[Symbol.asyncDispose](), TEST_MS)
  afterEach(() => {
    fleet.outside.onCall = () => {}
  })

  it(
    'resume on another worker after a kill at any point, and return equal reports',
    async ({ annotate }) => {
      const tags = KILL_POINTS.map((_, at) => `Tarn${at + 10}`)
      for (const tag of tags) fleet.outside.countsOf(tag).clear()
      const whole = await Promise.all(tags.map((tag, at) => runWhole(tag, KILL_POINTS[at]?.more ?? {})))
      for (const tag of tags) fleet.outside.countsOf(tag).clear()
      const ends = await runKilled(tags)
      let [kills, repeated] = [0, 0]
      for (const [at, { job, isKilled, crashes }] of ends.entries()) {
        const { name, more } = KILL_POINTS[at] as KillPoint
        const before = whole[at] as ResearchJob
        expect(job, `job after the fault ${name}`).toMatchObject({ status: 'completed' })
        expect(reportHash(job), `report after the fault ${name}`).toBe(reportHash(before))
        expect(kindsOf(job), `steps after the fault ${name}`).toEqual(kindsOf(before))
        expect(job.children?.length, `number of child jobs after the fault ${name}`).toBe(before.children?.length)
        await expectNoneDoubled(job)
        const again = repeatsOf(tags[at] as string)
        expect(
          again.every(([what, times]) => !what.startsWith('model') && times <= crashes),
          `repeated requests after the fault are at most the crashes, ${name}`,
        ).toBe(true)
        const most = more === IN_SERIES ? crashes : AT_ONCE * crashes
        const sum = again.reduce((all, [, times]) => all + times, 0)
        expect(sum, `repeated requests after the fault ${name}`).toBeLessThanOrEqual(most)
        kills += Number(isKilled && crashes > 0)
        repeated += sum
      }
      // Only kills during a search or the reading of a page are certain to hit a running job. At all other points, the research may wait
      // for child jobs or have ended, so no worker runs it.
      const sure = KILL_POINTS.filter(({ at }) => at && !at.sort.startsWith('model')).length
      expect(kills).toBeGreaterThanOrEqual(sure)
      await annotate(
        `${kills} workers were killed in the middle of a research; ${repeated} external calls were repeated`,
      )
    },
    TEST_MS,
  )

  it(
    'occupy no slot and no connection while their child jobs run',
    async ({ annotate }) => {
      const held = new Map<string, () => void>()
      fleet.outside.onCall = ({ tag, what }) =>
        what === 'model plan' ? new Promise<void>((resolve) => held.set(tag, resolve)) : undefined
      const socketsBefore = fleet.researchers.map(socketsOf)
      const tags = Array.from({ length: WAITING }, (_, at) => `Tarn${at + 1_000}`)
      const ids = await Promise.all(tags.map((tag) => fleet.submit(tag, IN_SERIES)))
      await until(() => held.size === WAITING, { withinMs: SETTLES_MS })
      await until(async () => (await statesOf(ids)).every((state) => state === 'waiting'), { withinMs: SETTLES_MS })
      for (const { metricsUrl } of fleet.researchers) {
        const metrics = await (await fetch(metricsUrl)).text()
        expect(metrics).toMatch(/^sluice_pool_running\{.*pool="research".*\} 0$/m)
      }
      const more = fleet.researchers.map((worker, at) => socketsOf(worker) - (socketsBefore[at] ?? 0))
      expect(Math.max(...more)).toBeLessThan(WAITING / WORKERS / 2)
      const meanwhile = await fleet.ended(await fleet.submit('Tarn999', { model: PLAIN }))
      expect(meanwhile).toMatchObject({ status: 'completed' })
      expect((await statesOf(ids)).every((state) => state === 'waiting')).toBe(true)
      fleet.outside.onCall = () => {}
      for (const release of held.values()) release()
      const jobs = await Promise.all(ids.map((id) => fleet.ended(id)))
      expect(jobs.map(({ status }) => status)).toEqual(ids.map(() => 'completed'))
      expect(tags.flatMap(repeatsOf)).toEqual([])
      await annotate(`${WAITING} waited with ${WORKERS} slots; sockets of each worker beside those before: ${more}`)
    },
    TEST_MS,
  )

  it.each(['search', 'page'])(
    'continue on another worker if the first worker stops during a %s request',
    async (sort) => {
      const tag = sort === 'search' ? 'Tarn4000' : 'Tarn4001'
      const whole = await runWhole(tag, {})
      fleet.outside.countsOf(tag).clear()
      const { promise: id, resolve } = Promise.withResolvers<string>()
      let stopped: Promise<number | string> | undefined
      fleet.outside.onCall = async ({ tag: own, what }) => {
        if (own !== tag || !what.startsWith(sort) || stopped) return
        const owner = await until(async () => await fleet.ownerOf(await id))
        stopped ??= fleet.stop(owner)
        // The worker must stop within its drain time, although this request still hangs.
        await stopped
      }
      resolve(await fleet.submit(tag))
      const job = await fleet.ended(await id)
      expect(await stopped).toBe(0)
      expect(job).toMatchObject({ status: 'completed' })
      expect(reportHash(job)).toBe(reportHash(whole))
      const [row] = await fleet.database.query(`SELECT crashes FROM jobs WHERE id = '${await id}'`)
      expect(Number(row?.crashes)).toBe(0)
      const again = repeatsOf(tag)
      expect(again.every(([what, times]) => what.startsWith(sort) && times === 1)).toBe(true)
      expect(again.length).toBeLessThanOrEqual(AT_ONCE)
    },
    TEST_MS,
  )

  it(
    'cancel their child jobs after a cancel',
    async () => {
      const hung = hangAt('Tarn2000', 'model note')
      const id = await fleet.submit('Tarn2000')
      const call = await hung
      await until(async () => (await statesOf([id]))[0] === 'waiting', { withinMs: SETTLES_MS })
      await fleet.post(`/v1/jobs/${id}/cancel`, {})
      expect((await fleet.ended(id)).status).toBe('cancelled')
      await call.aborted
      const statuses = await until(async () => {
        const { children = [] } = await fleet.job(id)
        return children.some(({ status }) => status === 'cancelled') ? children.map(({ status }) => status) : undefined
      })
      expect(statuses.toSorted()).toEqual(['cancelled', 'completed'])
    },
    TEST_MS,
  )

  it.each([
    // Planning gets only a part of the total time. If the plan is missing, then the research searches for the words of the question, and
    // ends normally (`stop`).
    { hangs: 'model plan', tag: 'Tarn3000', end: 'stop' },
    { hangs: 'model note', tag: 'Tarn3001', end: 'length' },
  ])(
    'report partial results in time if the $hangs request does not return',
    async ({ hangs, tag, end }) => {
      const hung = hangAt(tag, hangs)
      const id = await fleet.submit(tag, { max_duration_seconds: 10 })
      const call = await hung
      const job = await until(
        async () => {
          const seen = await fleet.job(id)
          return seen.status === 'completed' ? seen : undefined
        },
        { withinMs: SETTLES_MS },
      )
      const choice = job.result?.choices[0]
      expect(choice?.finish_reason).toBe(end)
      expect(choice?.message.annotations.length).toBeGreaterThan(0)
      // The research must abort the hanging call, so that no process waits for its response.
      await call.aborted
    },
    TEST_MS,
  )

  it(
    'report partial results after a cancel, even if the worker of the job is dead',
    async () => {
      const hung = hangAt('Tarn4000', 'model note')
      const id = await fleet.submit('Tarn4000', { on_cancel: 'partial' })
      const call = await hung
      await until(async () => (await statesOf([id]))[0] === 'waiting')
      await fleet.post(`/v1/jobs/${id}/cancel`, {})
      expectPartial(await fleet.ended(id))
      await call.aborted

      const page = hangAt('Tarn4001', 'page 2')
      const other = await fleet.submit('Tarn4001', { on_cancel: 'partial' })
      await page
      await until(async () => kindsOf(await fleet.job(other)).includes('read'))
      const owner = await until(() => fleet.ownerOf(other))
      const killed = fleet.kill(owner)
      await owner.exited
      await fleet.post(`/v1/jobs/${other}/cancel`, {})
      const partial = await fleet.ended(other)
      expectPartial(partial)
      await killed
      // The cancelled run did not record the interrupted steps. The replay must therefore report without these steps, and make no new
      // requests.
      fleet.outside.onCall = () => {}
      const asked = JSON.stringify([...fleet.outside.countsOf('Tarn4001')])
      const { id: replay } = (await (await fleet.post(`/v1/jobs/${other}/replay`, {})).json()) as ResearchJob
      expect(reportHash(await fleet.ended(replay))).toBe(reportHash(partial))
      expect(JSON.stringify([...fleet.outside.countsOf('Tarn4001')])).toBe(asked)
    },
    TEST_MS,
  )

  function expectPartial({ status, result }: ResearchJob): void {
    expect(status).toBe('completed')
    const choice = result?.choices[0]
    expect(choice?.finish_reason).toBe('length')
    expect(choice?.message.content).toContain('because it was cancelled')
    expect(choice?.message.annotations.length).toBeGreaterThan(0)
  }

  async function runWhole(tag: string, more: object): Promise<ResearchJob> {
    const job = await fleet.ended(await fleet.submit(tag, more))
    expect(job.status, `status of the job with the error ${JSON.stringify(job.error)}`).toBe('completed')
    expect(repeatsOf(tag)).toEqual([])
    expect(job.children).toHaveLength(3)
    return job
  }

  /** Runs one research per kill point, and kills its worker once at this point. */
  async function runKilled(tags: readonly string[]) {
    const ids = new Map<string, string>()
    const killed = new Set<string>()
    const replaced: Promise<void>[] = []
    const seen = new Map<string, number>()
    const killOwner = async (tag: string) => {
      const id = await until(() => ids.get(tag), { withinMs: SETTLES_MS })
      const owner = await fleet.ownerOf(id)
      if (!owner || killed.has(tag)) return
      killed.add(tag)
      replaced.push(fleet.kill(owner))
      await owner.exited
    }
    fleet.outside.onCall = async ({ tag, what }) => {
      const point = KILL_POINTS[tags.indexOf(tag)]?.at
      if (!point || !what.startsWith(point.sort)) return
      const nth = (seen.get(tag) ?? 0) + 1
      seen.set(tag, nth)
      if (nth === point.nth) await killOwner(tag)
    }
    const one = async (tag: string, { more, shown }: KillPoint) => {
      const id = await fleet.submit(tag, more)
      ids.set(tag, id)
      if (shown) await until(async () => isShown(await fleet.job(id), shown), { withinMs: SETTLES_MS })
      if (shown) await killOwner(tag)
      const job = await fleet.ended(id)
      const [row] = await fleet.database.query(`SELECT crashes FROM jobs WHERE id = '${id}'`)
      return { job, isKilled: killed.has(tag), crashes: Number(row?.crashes) }
    }
    const ends = await Promise.all(tags.map((tag, at) => one(tag, KILL_POINTS[at] as KillPoint)))
    await Promise.all(replaced)
    return ends
  }

  /** Makes the call `what` of one research hang forever. Resolves when the call arrives. */
  function hangAt(tag: string, what: string): Promise<OutsideCall> {
    return new Promise((resolve) => {
      fleet.outside.onCall = (call) => {
        if (call.tag !== tag || call.what !== what) return
        resolve(call)
        return new Promise<void>(() => {})
      }
    })
  }

  /** Returns the requests that a research made more than once, each with the number of repetitions. */
  function repeatsOf(tag: string): [string, number][] {
    return [...fleet.outside.countsOf(tag)].flatMap(([what, times]) => (times > 1 ? [[what, times - 1]] : []))
  }

  async function statesOf(ids: readonly string[]): Promise<unknown[]> {
    const list = ids.map((id) => `'${id}'`).join(', ')
    return (await fleet.database.query(`SELECT state FROM jobs WHERE id IN (${list})`)).map(({ state }) => state)
  }

  /** Checks that the job lists each child once, and that no two children have equal requests. */
  async function expectNoneDoubled({ id, children = [] }: ResearchJob): Promise<void> {
    const rows = await fleet.database.query(`SELECT id, request FROM jobs WHERE parent_id = '${id}'`)
    expect(children.map((child) => child.id).toSorted()).toEqual(rows.map((row) => row.id).toSorted())
    const requests = rows.map(({ request }) => bodyOf(String(request)))
    expect(new Set(requests).size).toBe(rows.length)
  }
})

function isShown(job: ResearchJob, shown: NonNullable<KillPoint['shown']>): boolean {
  const { steps = [], children = [] } = job
  return 'steps' in shown ? steps.length >= shown.steps : children.length >= shown.children
}

function kindsOf({ steps = [] }: ResearchJob): string[] {
  return steps.map(({ kind }) => kind).toSorted()
}

/** Returns the body of a stored request, which does not contain the id of the job. */
function bodyOf(request: string): string {
  const { body } = JSON.parse(request) as { body?: unknown }
  expect(body).toBeDefined()
  return JSON.stringify(body)
}

/** Returns the number of open sockets of a process. */
function socketsOf({ pid }: Researcher): number {
  return readdirSync(`/proc/${pid}/fd`).filter((fd) => {
    try {
      return readlinkSync(`/proc/${pid}/fd/${fd}`).startsWith('socket:')
    } catch {
      return false
    }
  }).length
}
