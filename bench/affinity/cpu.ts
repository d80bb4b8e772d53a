import { Callers } from '../load/callers.ts'
import { encodeRequest } from '../load/connection.ts'
import { startUpstream } from '../load/start.ts'
import { OneCore } from '../machine/one-core.ts'
import { startSluice } from '../machine/sluice.ts'
import { cpuMs } from '../machine/usage.ts'
import { Samples } from '../results/samples.ts'
import { type Goal, renderGoals, renderTable, show } from '../results/tables.ts'
import type { Run, Section } from '../section.ts'
import { modelsOn, SERVERS, SYSTEM } from './affinity.ts'

const CALLERS = 64
/**
 * Minimum number of rounds. The affinity modes `off` and `auto` differ so little in CPU time that fewer rounds would not show the
 * difference.
 */
const ROUNDS_MIN = 8

export const AFFINITY_CPU: Section = {
  name: 'affinity-cpu',
  summary: 'CPU time of a call with and without affinity',
  title: '## CPU time of affinity',
  introduction: `${CALLERS} callers of a model with four servers, with 1,000 sessions in rotation. The process has a core of its own. *off* and *auto* are the
values of \`affinity\`.`,
  measure,
}

async function measure(run: Run): Promise<string[]> {
  using core = new OneCore()
  await using processes = run.processes()
  const urls: URL[] = []
  for (let at = 0; at < SERVERS; at++) urls.push(await startUpstream(processes))
  const sluice = await startSluice(processes, { name: 'affinity-cpu', models: modelsOn(urls) })
  const pid = sluice.processes[0]?.pid ?? 0
  core.take(pid)
  const callers = await Promise.all(
    (['auto', 'off'] as const).map(async (model) => {
      const requests = Array.from({ length: 1_000 }, (_, at) => {
        const body = {
          model,
          messages: [
            { role: 'system', content: SYSTEM },
            { role: 'user', content: `Question ${at}` },
          ],
        }
        return encodeRequest(sluice, '/v1/chat/completions', body, { headers: { 'x-session-id': `session-${at}` } })
      })
      return { model, load: await Callers.open(sluice.url, requests, CALLERS) }
    }),
  )
  const samples = new Samples()
  const rounds = Math.max(ROUNDS_MIN, run.options.rounds)
  const answered = { auto: 0, off: 0 }
  for (let round = 0; round <= rounds; round++) {
    for (const { model, load } of round % 2 === 0 ? callers : callers.toReversed()) {
      const before = cpuMs(pid)
      // The returned counts are cumulative over all runs of this load, so the count of the earlier runs is subtracted
      // below.
      const { answers, failures, failure } = await load.run(run.seconds(2, 4))
      if (failures > 0) throw new Error(`${failures} calls of ${model} failed: ${failure}`)
      const cpu = (cpuMs(pid) - before) / (answers - answered[model])
      answered[model] = answers
      // The first round only warms up the processes, so its results are dropped.
      if (round > 0) samples.add(model, 'cpu', round, { cpu })
    }
  }
  for (const { load } of callers) load[Symbol.dispose]()
  const measured = samples.median('auto', 'cpu', 'cpu') / samples.median('off', 'cpu', 'cpu')
  const rows = (['off', 'auto'] as const).map((model) => [model, show(samples.median(model, 'cpu', 'cpu'), 3)])
  const goal: Goal = { name: `CPU of a call, ${CALLERS} callers`, measured, unit: '× off', decimals: 3, max: 1.02 }
  return [renderGoals([goal]), renderTable(['affinity', 'CPU ms/call'], rows)]
}
