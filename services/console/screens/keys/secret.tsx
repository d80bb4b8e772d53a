import { useEffect, useRef } from 'preact/hooks'
import { Copy } from '#services/console/parts/copy.tsx'
import { Icon } from '#services/console/parts/icon.tsx'
import type { MadeKey } from './state.ts'

/** The secret of a key that was just made: it is told once. */
export function Secret({ of, close }: { readonly of: MadeKey; readonly close: () => void }) {
  const secret = useRef<HTMLElement>(null)
  useEffect(() => secret.current?.focus(), [])
  return (
    <>
      <p class="note warn">
        <Icon name="warn" />
        <span>This is shown only now. Nobody can tell it later: copy it to where it is kept.</span>
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: whoever reads by ear is led to what is new. */}
      <code class="secret" ref={secret} tabIndex={0}>
        {of.secret}
      </code>
      <p class="dim">
        It is the secret of <code>{of.id}</code>. Send it as <code>Authorization: Bearer …</code>
      </p>
      <div class="actions end">
        <Copy text={of.secret} label="Copy the key" />
        <button type="button" class="primary" onClick={close}>
          I have it
        </button>
      </div>
    </>
  )
}
