import { EngineRegistry } from '#shared/engines/engine-registry.ts'
import { modelsOf, startWorker } from '#shared/jobs/worker/worker.ts'
import { handle } from '#shared/kinds/kind.ts'
import { transcribe, translate } from '#shared/kinds/transcribe/transcribe.ts'
import type { Ports } from '#shared/ports.ts'
import { prepareInBackground } from '#shared/prepare-progress.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { AudioQuota } from './audio-quota.ts'
import { runTranscription, type Workbench } from './transcribe.ts'

export async function startTranscription(ports: Ports): Promise<Service> {
  const bench = await openWorkbench(ports)
  const kinds = {
    transcribe: handle(transcribe, (request, context) => runTranscription(bench, request, context)),
    translate: handle(translate, (request, context) => runTranscription(bench, request, context, true)),
  }
  const { transcriptionSlots: slots } = ports.config
  const preparing = prepareInBackground(ports, 'transcription')
  const placesOf = (model: string) => bench.engines.find(model)?.places
  const asked = { pool: 'transcription', kinds: Object.keys(kinds), slots, placesOf } as const
  const own = () => modelsOf(ports.models.served, asked)
  const retire = (untilOver: Promise<void>) => bench.engines.retire(untilOver)
  return await startWorker(ports, { name: 'transcription', slots, kinds, own, retire }, async () => {
    await preparing.stop()
    await bench.close()
  })
}

async function openWorkbench(ports: Ports) {
  const openers = await ports.loadEngines()
  const tools = openers.openAudioTools()
  const engines = new EngineRegistry(ports.models.served, (model) => openers.openTranscriptionEngine(model))
  const { audioSecondsPerKey: secondsPerKey, audioSecondsMax: secondsMax } = ports.config
  let isTold = false
  const bench: Workbench = {
    ports,
    tools,
    share: new AudioQuota({ secondsPerKey, secondsMax }),
    engineOf: (model) => engines.get(model.id),
    onUnchecked(why) {
      if (!isTold) ports.log.warn({ reason: why.message }, 'audio sent to the model without local validation')
      isTold = true
    },
  }
  return Object.assign(bench, {
    engines,
    async close() {
      await Promise.all([tools.close(), engines.close()])
    },
  })
}
