import { HOPS, type TargetName } from '../calls/targets.ts'
import { OneCore } from '../machine/one-core.ts'
import type { Section } from '../section.ts'
import { FIRST_CALLS, measureSpeed } from './measure.ts'
import { renderSpeed } from './report.ts'

const TARGETS: readonly TargetName[] = ['embedded', 'kafka']
const WITH_OTHER: readonly TargetName[] = ['embedded', 'beside-embedded', 'kafka', 'beside-kafka']

/** What the queue costs beside a proxy, one core for either. */
export const SPEED: Section = {
  name: 'speed',
  title: '## The queue beside a proxy, on one core',
  introduction: `Whatever stands between callers and upstream has one core: the bare proxy, Sluice in one process, or its
ingress and its worker together; callers, upstream and broker have the others. *In step* means that so many streams begin at once and
all their tokens come in the same moment, as from one model server, 50 times a second. *Prompts of 32 KiB* are calls that carry
a document of that length, the others a question. *Sparse* is one caller who waits 20 ms after each answer. *First calls* are the first ${FIRST_CALLS} of one caller after a start, *idle* is the process before them. *Added* is
what a figure is above that of calling the upstream directly. *Kafka alone* is the bare proxy cut in two, with the broker and the client
of Sluice between the halves and nothing else: where it misses a target of Sluice, no queue there reaches it with this client. *Where the CPU goes* is V8's sampling profile of the second half of such a
load, of a process of its own, by the file whose code ran.

Why targets are missed: a call is a hundred small steps, each of which is a percent or two, over ten times as much code as the proxy's. A
whole call leaves 110 KB for the collector (\`--trace-gc-nvp\`), so that what both do (HTTP, sockets, the loop) finds its data and
its code in the caches less often, and takes longer too; system calls are as many as the proxy's, four a call. So calls that come together
are begun eight in a turn of the loop, and answers that end together are ended eight in a turn, after the last words of all: 256 streams would
hold up each other's tokens for as long as all of them take to begin and to end. Tokens come late by how long the others of the same moment take. A sparse call waits for nothing on its way (\`strace\`: read, write to the upstream, read, write): what it adds is
code that runs cold, so that each part of its profile costs several times as much as with 64 callers, the proxy's too. The first calls of a process run before V8 has
compiled it; the last of a thousand stand beside them. What was tried and gained nothing that could be measured: a larger new space, a collector of one thread, large pages, other bounds of inlining, compiling
sooner (\`--always-sparkplug\`, \`--no-lazy-feedback-allocation\`), Kafka's requests 2 ms apart while there are many records (the same
CPU, tokens later), and iterators in the place of generators, of which one costs 0.2 µs a token. Fifty calls that a process makes of
itself before its port opens take 40 ms off its first call and nothing off the next hundred, for 0.4 s of CPU at each start and 6 MiB.`,
  async measure({ kafka, dir, isQuick, rounds, seconds, beside, gateways, profileDir, print, signal }) {
    const { problem } = OneCore
    if (problem !== undefined) return [`Not measured: ${problem}.`]
    const how = {
      targets: [
        'direct',
        'proxy',
        HOPS,
        ...gateways.map(({ name }) => name),
        ...(beside === undefined ? TARGETS : WITH_OTHER),
      ] satisfies TargetName[],
      rounds,
      seconds: seconds ?? (isQuick ? 1.5 : 4),
      warmUpSeconds: isQuick ? 1 : 4,
      idleSeconds: isQuick ? 3 : 20,
      ...{ beside, gateways, profileDir, print, signal },
    }
    return renderSpeed(await measureSpeed(how, kafka, dir))
  },
}
