import type { ModelConfig } from '#schemas/models.ts'
import type { Config } from '#shared/config/config.ts'
import { openAnthropicEngine } from '#shared/engines/anthropic/anthropic.ts'
import type { ChatEngine } from '#shared/engines/chat.ts'
import { openEchoEngine } from '#shared/engines/echo/echo.ts'
import { openLlamaEngine } from '#shared/engines/llama/llama.ts'
import { openOpenAiEngine } from '#shared/engines/openai/chat.ts'
import type { UpstreamFleet } from '#shared/engines/upstream/share.ts'
import { ServiceError } from '#shared/error.ts'

/** Opens the engine that generates text with a model. The caller closes it. @throws ServiceError `model_not_supported` */
export function openChatEngineOf(model: ModelConfig, config: Config, fleet: UpstreamFleet): ChatEngine {
  switch (model.engine.type) {
    case 'openai':
      return openOpenAiEngine(model, config.env, fleet.open(model))
    case 'anthropic':
      return openAnthropicEngine(model, config.env, fleet.open(model))
    case 'llama':
      return openLlamaEngine(model, { weightsDir: config.weightsDir, modelsDir: config.modelsDir, prepare: true })
    case 'echo':
      return openEchoEngine(model)
    case 'local':
    case 'research':
      throw new ServiceError('model_not_supported', `The model '${model.id}' does not generate text.`)
  }
}
