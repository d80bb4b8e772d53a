import { Served } from '#shared/engines/served.ts'
import { estimateUsage } from '#shared/engines/upstream/usage.ts'
import { inTurns } from '#shared/in-turns.ts'
import { modelsOf } from '#shared/jobs/worker/models.ts'
import { startWorker } from '#shared/jobs/worker/service.ts'
import { countTokens, generate } from '#shared/kinds/generate.ts'
import { handle } from '#shared/kinds/kind.ts'
import type { Ports } from '#shared/ports.ts'
import { prepareInBackground } from '#shared/prepare/progress.ts'
import type { Service } from '#shared/process/lifecycle.ts'
import { generateWithFallback, isUpstream } from './fallback.ts'
import { withProgress } from './progress.ts'
import { requirePublicUrls } from './remote-urls.ts'
import { readRequest } from './request.ts'

/** Starts one worker of the inference pool: text generation on the engines of the model catalogue. */
export async function startInference(ports: Ports): Promise<Service> {
  const engines = new Served(ports.models, (model) => ports.openChatEngine(model))
  const parse = (body: unknown) => inTurns(readRequest(body))
  const kinds = {
    generate: handle(
      generate,
      (request, context) => {
        const events = generateWithFallback(engines, ports, request, context)
        return context.onProgress ? withProgress(events, request, context.onProgress) : events
      },
      parse,
    ),
    count_tokens: handle(
      countTokens,
      async function* (request, context) {
        if (isUpstream(ports, request.model)) await requirePublicUrls(request, context.signal)
        const counted = await engines.get(request.model).countTokens?.(request, context)
        yield { input_tokens: counted ?? (await estimateUsage(request, '')).input_tokens }
      },
      parse,
    ),
  }
  const preparing = prepareInBackground(ports, 'inference')
  const slots = ports.config.inferenceSlots
  const pool = { name: 'inference', slots, kinds, ...modelsOf(ports.models, 'inference', 'generate', slots) } as const
  return await startWorker(ports, pool, async () => {
    await preparing.stop()
    await engines.close()
  })
}
