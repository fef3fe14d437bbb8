import com.arjuna.ats.arjuna.common.ObjectStoreEnvironmentBean;
import com.arjuna.ats.arjuna.common.arjPropertyManager;
import com.arjuna.ats.arjuna.common.recoveryPropertyManager;
import com.arjuna.ats.arjuna.recovery.RecoveryManager;
import com.arjuna.ats.arjuna.recovery.RecoveryModule;
import com.arjuna.ats.internal.arjuna.recovery.AtomicActionRecoveryModule;
import com.arjuna.ats.internal.jta.recovery.arjunacore.JTANodeNameXAResourceOrphanFilter;
import com.arjuna.ats.internal.jta.recovery.arjunacore.JTATransactionLogXAResourceOrphanFilter;
import com.arjuna.ats.internal.jta.recovery.arjunacore.XARecoveryModule;
import com.arjuna.ats.jta.common.jtaPropertyManager;
import com.arjuna.ats.jta.recovery.XAResourceRecoveryHelper;
import com.arjuna.common.internal.util.propertyservice.BeanPopulator;
import jakarta.transaction.TransactionManager;
import java.sql.Connection;
import java.util.ArrayList;
import java.util.List;
import javax.sql.XAConnection;
import javax.sql.XADataSource;
import javax.transaction.xa.XAResource;

/** Narayana, by itself as in a program without a container. */
final class Narayana implements Transfers.Manager {
    private static final String NODE = "bank";
    private final TransactionManager manager;
    private final List<XADataSource> sources;
    private final List<XAConnection> open = new ArrayList<>();
    private RecoveryManager recovery;

    Narayana(String folder, List<XADataSource> sources) throws Exception {
        this.sources = sources;
        arjPropertyManager.getCoreEnvironmentBean().setNodeIdentifier(NODE);
        for (String store : new String[] {"default", "communicationStore", "stateStore"}) {
            BeanPopulator.getNamedInstance(ObjectStoreEnvironmentBean.class, store).setObjectStoreDir(folder);
        }
        BeanPopulator.getDefaultInstance(ObjectStoreEnvironmentBean.class).setObjectStoreDir(folder);
        recoveryPropertyManager.getRecoveryEnvironmentBean().setRecoveryModuleClassNames(
            List.of(AtomicActionRecoveryModule.class.getName(), XARecoveryModule.class.getName()));
        recoveryPropertyManager.getRecoveryEnvironmentBean().setRecoveryBackoffPeriod(1);
        jtaPropertyManager.getJTAEnvironmentBean().setXaRecoveryNodes(List.of(NODE));
        jtaPropertyManager.getJTAEnvironmentBean().setOrphanSafetyInterval(1000);
        jtaPropertyManager.getJTAEnvironmentBean().setXaResourceOrphanFilterClassNames(
            List.of(JTATransactionLogXAResourceOrphanFilter.class.getName(), JTANodeNameXAResourceOrphanFilter.class.getName()));
        manager = com.arjuna.ats.jta.TransactionManager.transactionManager();
    }

    @Override
    public void begin() throws Exception {
        manager.begin();
    }

    @Override
    public Connection connect(int database) throws Exception {
        XAConnection connection = sources.get(database).getXAConnection();
        open.add(connection);
        manager.getTransaction().enlistResource(connection.getXAResource());
        return connection.getConnection();
    }

    @Override
    public void commit() throws Exception {
        manager.commit();
        for (XAConnection connection : open) {
            connection.close();
        }
        open.clear();
    }

    @Override
    public void recover() throws Exception {
        if (recovery == null) {
            List<XAResource> resources = new ArrayList<>();
            for (XADataSource source : sources) {
                resources.add(source.getXAConnection().getXAResource());
            }
            recovery = RecoveryManager.manager(RecoveryManager.DIRECT_MANAGEMENT);
            for (RecoveryModule module : recovery.getModules()) {
                if (module instanceof XARecoveryModule) {
                    ((XARecoveryModule) module).addXAResourceRecoveryHelper(new Resources(resources));
                }
            }
        }
        recovery.scan();
    }

    private record Resources(List<XAResource> resources) implements XAResourceRecoveryHelper {
        @Override
        public boolean initialise(String ignored) {
            return true;
        }

        @Override
        public XAResource[] getXAResources() {
            return resources.toArray(new XAResource[0]);
        }
    }
}
