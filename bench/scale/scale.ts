import { renderTable, show } from '../figures/markdown.ts'
import type { Section } from '../section.ts'
import { measureControl } from './control.ts'
import { measureStreams } from './streams.ts'

/** What grows with a fleet: the control channel with its processes, an ingress with the streams it holds. */
export const SCALE: Section = {
  name: 'scale',
  title: '## Scale',
  introduction: `Every process of a fleet tells every other one that it lives. What hearing that costs is measured with
fleets of which all speak, and two and then eight hear, each over connections of its own; the broker's share for a whole fleet is
projected from the difference of both. Streams: so many are open at once on one ingress with two workers, over Kafka, each with
a token every five seconds, while ten calls are made beside them.`,
  isLarge: true,
  async measure({ kafka, dir, isQuick, print, signal }) {
    const seconds = isQuick ? 3 : 8
    const members = isQuick ? [13, 53] : [13, 53, 203]
    const control = await measureControl({ kafka, dir, members, seconds, print, signal })
    const streams = await measureStreams({
      kafka,
      dir,
      streams: isQuick ? [500] : [1_000, 10_000],
      seconds,
      print,
      signal,
    })
    return [
      renderTable(
        [
          'processes',
          'records/s heard',
          'KiB/s',
          'CPU of one, % of a core',
          "broker's CPU for one",
          "broker's CPU for all",
        ],
        control.map((cost) => [
          ...[String(cost.members), show(cost.records, 0), show(cost.kib, 0)],
          ...[cost.member, cost.brokerEach, cost.broker].map((of) => show(of, 1)),
        ]),
      ),
      renderTable(
        [
          ...['streams', 'seconds to open', 'tokens/s', 'ingress KiB a stream', 'workers KiB a stream'],
          ...['ingress % of a core', 'workers %', 'slowest call beside, ms', 'failed'],
        ],
        streams.map((cost) => [
          ...[String(cost.streams), show(cost.openSeconds, 0), show(cost.tokensPerSecond, 0)],
          ...[show(cost.ingressKib, 0), show(cost.workerKib, 0), show(cost.ingressCpu, 0), show(cost.workerCpu, 0)],
          ...[show(cost.besideMs, 0), String(cost.failures)],
        ]),
      ),
    ]
  },
}
