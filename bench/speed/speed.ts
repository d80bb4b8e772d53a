import type { TargetName } from '../calls/targets.ts'
import { OneCore } from '../machine/one-core.ts'
import type { Section } from '../section.ts'
import { FIRST_CALLS, measureSpeed } from './measure.ts'
import { renderSpeed } from './report.ts'

const TARGETS: readonly TargetName[] = ['direct', 'proxy', 'embedded', 'kafka']
const WITH_OTHER: readonly TargetName[] = ['direct', 'proxy', 'embedded', 'beside-embedded', 'kafka', 'beside-kafka']

/** What the queue costs beside a proxy, one core for either. */
export const SPEED: Section = {
  name: 'speed',
  title: '## The queue beside a proxy, on one core',
  introduction: `Whatever stands between callers and upstream has one core: the bare proxy, Sluice in one process, or its
ingress and its worker together; callers, upstream and broker have the others. *In step* means that so many streams begin at once and
all their tokens come in the same moment, as from one model server, 50 times a second. *Sparse* is one caller who waits 20 ms
after each answer. *First calls* are the first ${FIRST_CALLS} of one caller after a start, *idle* is the process before them. *Added* is
what a figure is above that of calling the upstream directly. *Where the CPU goes* is V8's sampling profile of the second half of such a
load, of a process of its own, by the file whose code ran.`,
  async measure({ kafka, dir, isQuick, rounds, seconds, beside, profileDir, print, signal }) {
    const { problem } = OneCore
    if (problem !== undefined) return [`Not measured: ${problem}.`]
    const how = {
      targets: beside === undefined ? TARGETS : WITH_OTHER,
      rounds,
      seconds: seconds ?? (isQuick ? 1.5 : 4),
      warmUpSeconds: isQuick ? 1 : 4,
      idleSeconds: isQuick ? 3 : 20,
      ...{ beside, profileDir, print, signal },
    }
    return renderSpeed(await measureSpeed(how, kafka, dir))
  },
}
