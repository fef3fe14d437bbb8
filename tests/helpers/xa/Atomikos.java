import com.atomikos.icatch.jta.UserTransactionManager;
import com.atomikos.jdbc.AtomikosDataSourceBean;
import java.sql.Connection;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import javax.sql.XADataSource;

/** Atomikos' TransactionsEssentials. It recovers by itself, every second. */
final class Atomikos implements Transfers.Manager {
    private final UserTransactionManager manager = new UserTransactionManager();
    private final List<AtomikosDataSourceBean> pools = new ArrayList<>();

    Atomikos(String folder, List<XADataSource> sources) throws Exception {
        Map.of(
            "tm_unique_name", "bank",
            "log_base_dir", folder,
            "default_jta_timeout", "5000",
            "max_timeout", "5000", // what is older belongs to no transaction of this life
            "recovery_delay", "1000"
        ).forEach((name, value) -> System.setProperty("com.atomikos.icatch." + name, value));
        for (XADataSource source : sources) {
            AtomikosDataSourceBean pool = new AtomikosDataSourceBean();
            pool.setUniqueResourceName("bank" + pools.size());
            pool.setXaDataSource(source);
            pool.setMaxPoolSize(3);
            pool.init();
            pools.add(pool);
        }
        manager.init();
    }

    @Override
    public void begin() throws Exception {
        manager.begin();
    }

    @Override
    public Connection connect(int database) throws Exception {
        return pools.get(database).getConnection();
    }

    @Override
    public void commit() throws Exception {
        manager.commit();
    }

    @Override
    public void recover() {
        // Since `init`, on a thread of its own.
    }
}
